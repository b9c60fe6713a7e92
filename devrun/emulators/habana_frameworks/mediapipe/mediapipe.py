"""The pipeline itself."""

from __future__ import annotations

from habana_frameworks.mediapipe import Refused


class MediaPipe(Refused):
    """Refused when built."""
