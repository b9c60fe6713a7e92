"""The media pipeline: importable, since loaders name it, and refused when built."""

from __future__ import annotations

from typing import Any


def __getattr__(name: str) -> Any:
    """`fn`, the namespace of the pipeline's nodes."""
    if name == "fn":
        return Refused
    raise AttributeError(f"habana_frameworks.mediapipe has no attribute {name}")


class Refused:
    """What a pipeline is made of."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        raise NotImplementedError(
            "the media pipeline decodes on a Gaudi and is not emulated; "
            "use a torch DataLoader with --emulate"
        )
