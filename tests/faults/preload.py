"""Imported once by the server, so that no forked run has to."""

import torch._dynamo  # noqa: F401 - what an optimizer imports at its first step
