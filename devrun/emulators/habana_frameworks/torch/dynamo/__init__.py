"""torch.compile on the device."""

from __future__ import annotations

from habana_frameworks.torch.dynamo import compile_backend

__all__ = ["compile_backend"]
