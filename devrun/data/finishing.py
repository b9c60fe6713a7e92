"""`on_device: true`: the last transforms of a pipeline, on the device, batch by batch.

Images then travel as the bytes that they are, a quarter of what float32 takes.
"""

from __future__ import annotations

import copy
from typing import Any

from torch import Tensor

from devrun.data.transforms import Compose, Normalize, ToTensor
from devrun.data.transforms.image import as_tensor
from devrun.errors import ConfigError, DataError

_INNER = ("dataset", "datasets")
_ELEMENTWISE = (ToTensor, Normalize)


class Finish:
    """What is left to do of the images (N, C, H, W) that a batch begins with."""

    def __init__(self, transforms: list[Any]) -> None:
        self.transforms = transforms

    def __call__(self, batch: Any) -> Any:
        """`batch`, a list or tuple, with its images as the pipeline would give them.

        Raises:
            DataError: it does not begin with a tensor.
        """
        if not (isinstance(batch, (list, tuple)) and isinstance(batch[0], Tensor)):
            raise DataError(
                "on_device is for samples (image, ...), this batch is "
                f"{type(batch).__name__}: leave on_device out"
            )
        images: Any = batch[0]
        for transform in self.transforms:
            images = transform(images)
        return type(batch)([images, *batch[1:]])


def without_finish(dataset: Any) -> tuple[Any, Finish]:
    """A copy of `dataset` whose images stay as they are decoded, and what is left.

    Raises:
        ConfigError: its pipeline does not end with `ToTensor` or `Normalize`, or those
            of several data sets end differently.
    """
    tails: list[list[Any]] = []
    left = _stripped(dataset, tails)
    kinds = {repr([_facts(part) for part in tail]) for tail in tails}
    if len(kinds) > 1:
        raise ConfigError.of(
            "on_device", "takes data sets whose pipelines end alike; these differ"
        )
    return left, Finish(tails[0])


def _stripped(dataset: Any, tails: list[list[Any]]) -> Any:
    own = getattr(dataset, "__dict__", {})
    left = copy.copy(dataset)
    for name in _INNER:
        if isinstance(inner := own.get(name), (list, tuple)):
            setattr(left, name, [_stripped(each, tails) for each in inner])
            return left
        if inner is not None:
            setattr(left, name, _stripped(inner, tails))
            return left
    pipeline = own.get("pipeline")
    steps = list(pipeline.transforms) if type(pipeline) is Compose else []
    at = len(steps)
    while at and type(steps[at - 1]) in _ELEMENTWISE:
        at -= 1
    if at == len(steps):
        raise ConfigError.of(
            "on_device",
            "takes a pipeline whose last transforms are ToTensor or Normalize; that of "
            f"{type(dataset).__name__} {_ending(steps)}: leave on_device out",
        )
    left.pipeline = Compose([*steps[:at], as_tensor])
    tails.append(steps[at:])
    return left


def _ending(steps: list[Any]) -> str:
    return f"ends with {type(steps[-1]).__name__}" if steps else "is not a list"


def _facts(transform: Any) -> Any:
    mean, std = (getattr(transform, name, None) for name in ("mean", "std"))
    listed = [None if part is None else part.flatten().tolist() for part in (mean, std)]
    return type(transform).__name__, listed
