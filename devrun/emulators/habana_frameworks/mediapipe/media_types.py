"""The pipeline's enumerations: any name is one of its own values."""

from __future__ import annotations


class _Names(type):
    def __getattr__(cls, name: str) -> str:
        if name.startswith("__"):
            raise AttributeError(name)
        return name


class decoderStage(metaclass=_Names):  # noqa: N801 - the SDK's name
    """Stages of decoding."""


class dtype(metaclass=_Names):  # noqa: N801
    """Element types."""


class ftype(metaclass=_Names):  # noqa: N801
    """Filters."""


class imgtype(metaclass=_Names):  # noqa: N801
    """Image types."""


class randomCropType(metaclass=_Names):  # noqa: N801
    """Ways to crop."""
