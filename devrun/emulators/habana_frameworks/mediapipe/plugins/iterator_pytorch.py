"""Iterators that yield tensors."""

from __future__ import annotations

from habana_frameworks.mediapipe import Refused


class HPUResnetPytorchIterator(Refused):
    """Refused when built."""
