"""Nodes that run on the host."""

from __future__ import annotations

from habana_frameworks.mediapipe import Refused


class media_function(Refused):  # noqa: N801 - the SDK's name
    """Refused when built."""
