"""The backend `hpu_backend` of torch.compile: graphs are made and run as they are."""

from __future__ import annotations

from habana_frameworks.torch.dynamo.compile_backend import (
    backends,
    config,
    experimental,
)

__all__ = ["backends", "config", "experimental"]
