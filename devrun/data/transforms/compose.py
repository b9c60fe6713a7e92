"""`Compose`: transforms one after the other, from objects or from config dicts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from devrun.construct import where
from devrun.errors import ConfigTypeError
from devrun.place import Place
from devrun.registry import TRANSFORMS


@TRANSFORMS.register_module()
class Compose:
    """Applies `transforms` in order; dicts among them are built from TRANSFORMS."""

    def __init__(self, transforms: Sequence[Any]) -> None:
        if not isinstance(transforms, (list, tuple)):
            raise ConfigTypeError(
                f"a pipeline is a list of transforms, got {type(transforms).__name__}",
                key="transforms",
            )
        self.transforms = [
            _built(transform, where(transforms, at))
            for at, transform in enumerate(transforms)
        ]

    def __call__(self, value: Any) -> Any:
        for transform in self.transforms:
            value = transform(value)
        return value

    def __repr__(self) -> str:
        return f"Compose({self.transforms})"


def build_pipeline(pipeline: Any) -> Callable[[Any], Any]:
    """The callable of a `pipeline` value: a list, one dict, a callable, or None.

    None stands for `ToTensor`, the only type that a model accepts.
    """
    if pipeline is None:
        pipeline = [{"type": "ToTensor"}]
    if isinstance(pipeline, (list, tuple)):
        return Compose(pipeline)
    return _built(pipeline)


def _built(transform: Any, place: Place | None = None) -> Callable[[Any], Any]:
    if isinstance(transform, dict):
        transform = TRANSFORMS.build(transform)
    if not callable(transform):
        raise ConfigTypeError(
            "a transform is a dict with a type, or a callable, got "
            f"{type(transform).__name__} {transform!r}",
            place=place,
        )
    return transform  # type: ignore[no-any-return]
