"""Helpers of the SDK."""

from __future__ import annotations

from habana_frameworks.torch.utils import (
    debug,
    event_dispatcher,
    experimental,
    internal,
    library_loader,
)

__all__ = ["debug", "event_dispatcher", "experimental", "internal", "library_loader"]
