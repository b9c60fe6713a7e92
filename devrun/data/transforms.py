"""Image transforms for `pipeline` lists: on tensors (C, H, W) and on Pillow images.

    pipeline:
    - {type: torchvision.transforms.v2.RandomResizedCrop, size: 224}
    - {type: RandomHorizontalFlip}
    - {type: ToTensor}
    - {type: Normalize, mean: [0.485, 0.456, 0.406], std: [0.229, 0.224, 0.225]}

Here is what small images need; the others are torchvision's, by their dotted paths.
Random ones draw from Python's `random`, which the loader seeds for each sample.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from devrun.construct import where
from devrun.errors import ConfigError, ConfigTypeError, DataError
from devrun.place import Place
from devrun.registry import DATASETS, TRANSFORMS


@TRANSFORMS.register_module()
class Compose:
    """Applies `transforms` in order; dicts among them are built from TRANSFORMS."""

    def __init__(self, transforms: Sequence[Any] | Compose) -> None:
        if isinstance(transforms, Compose):
            transforms = transforms.transforms
        if not isinstance(transforms, (list, tuple)):
            raise ConfigTypeError(
                f"a pipeline is a list of transforms, got {type(transforms).__name__}",
                key="transforms",
            )
        self.transforms: list[Callable[[Any], Any]] = [
            _built(transform, where(transforms, at))
            for at, transform in enumerate(transforms)
        ]

    def __call__(self, value: Any) -> Any:
        for transform in self.transforms:
            value = transform(value)
        return value

    def __iter__(self) -> Iterator[Callable[[Any], Any]]:
        return iter(self.transforms)


def build_pipeline(pipeline: Any) -> Callable[[Any], Any]:
    """The callable of a `pipeline` value: a list, one dict, a callable, or None.

    None stands for `ToTensor`, the only type that a model accepts.
    """
    if pipeline is None:
        pipeline = [{"type": "ToTensor"}]
    if isinstance(pipeline, (list, tuple)):
        return Compose(pipeline)
    return _built(pipeline)


def with_pipeline(dataset: dict[str, Any]) -> dict[str, Any]:
    """The config of a data set of the user's with its `pipeline` as one function.

    devrun's own make theirs themselves, and so does one whose transforms are in a
    registry of its own.
    """
    kind, pipeline = dataset.get("type"), dataset.get("pipeline")
    found = DATASETS.get(kind) if isinstance(kind, str) else kind
    module = getattr(found, "__module__", "devrun.")
    if module.startswith("devrun.") or not isinstance(pipeline, (list, tuple)):
        return dataset
    names = [each.get("type") for each in pipeline if isinstance(each, Mapping)]
    if not all(isinstance(n, str) and ("." in n or n in TRANSFORMS) for n in names):
        return dataset
    made = copy(dataset)  # keeps where it was written
    made["pipeline"] = Compose(pipeline)
    return made


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


@TRANSFORMS.register_module()
class RandomCrop:
    """A `size` crop at random, after `padding` pixels of `fill` on every side."""

    def __init__(
        self, size: int | Sequence[int], padding: int = 0, fill: int = 0
    ) -> None:
        self.size = _pair(size)
        self.padding, self.fill = padding, fill

    def __call__(self, image: Any) -> Any:
        if self.padding:
            image = _pad(image, self.padding, self.fill)
        height, width = (a - b for a, b in zip(_size_of(image), self.size))
        if height < 0 or width < 0:
            raise DataError(
                f"RandomCrop: an image of {_size_of(image)} is smaller than {self.size}"
            )
        top, left = random.randint(0, height), random.randint(0, width)
        return _crop(image, top, left, *self.size)


@TRANSFORMS.register_module()
class RandomHorizontalFlip:
    """Left and right exchanged with probability `p`."""

    def __init__(self, p: float = 0.5) -> None:
        self.p = p

    def __call__(self, image: Any) -> Any:
        return _flip(image) if random.random() < self.p else image


@TRANSFORMS.register_module()
class ToTensor:
    """A float32 tensor (C, H, W); pixels of 0 to 255 become 0 to 1."""

    def __call__(self, image: Any) -> Tensor:
        tensor = as_tensor(image)
        if tensor.dtype == torch.uint8:
            return tensor.to(torch.float32).div_(255)
        return tensor.to(torch.float32)


@TRANSFORMS.register_module()
class Normalize:
    """`(image - mean) / std` per channel, in the units the image has.

    After `ToTensor` these are 0 to 1 (torchvision's numbers); on 8-bit pixels they
    are 0 to 255 (MMCV's numbers), and the result is a float32 tensor.
    """

    def __init__(self, mean: Sequence[float], std: Sequence[float]) -> None:
        if len(mean) != len(std) or not all(value > 0 for value in std):
            raise ConfigError(
                "mean and std take one number per channel, std above 0, got "
                f"{mean!r} and {std!r}",
                key="std",
            )
        self.mean = torch.tensor(mean, dtype=torch.float32).view(-1, 1, 1)
        self.std = torch.tensor(std, dtype=torch.float32).view(-1, 1, 1)

    def __call__(self, image: Any) -> Tensor:
        tensor = as_tensor(image)
        if tensor.shape[-3] != len(self.mean):
            raise DataError(
                f"Normalize has {len(self.mean)} channels, the image has "
                f"{tensor.shape[-3]}"
            )
        return (tensor.to(torch.float32) - self.mean).div_(self.std)


def _pair(size: int | Sequence[int]) -> tuple[int, int]:
    pair = (size, size) if isinstance(size, int) else size
    good = isinstance(pair, (list, tuple)) and len(pair) == 2
    if not good or not all(type(edge) is int and edge > 0 for edge in pair):
        raise ConfigTypeError.of(
            "size", f"must be a positive int or (height, width), got {size!r}"
        )
    return pair[0], pair[1]


def _size_of(image: Any) -> tuple[int, int]:
    """(height, width)."""
    if isinstance(image, Tensor):
        return image.shape[-2], image.shape[-1]
    if hasattr(image, "getbands"):  # Pillow, which need not be installed
        width, height = image.size
        return height, width
    raise DataError(
        f"an image is a tensor (C, H, W) or a Pillow image, got {type(image).__name__}"
    )


def as_tensor(image: Any) -> Tensor:
    """The pixels as a tensor (C, H, W) of the type they have, 0 to 255 from Pillow."""
    if isinstance(image, Tensor):
        return image
    _size_of(image)
    pixels = np.array(image)  # a copy: what Pillow lends may not be written to
    if pixels.dtype == np.bool_:
        pixels = pixels.astype(np.uint8) * 255
    tensor = torch.from_numpy(pixels)
    if tensor.dim() == 2:
        return tensor.unsqueeze(0)
    return tensor.permute(2, 0, 1).contiguous()


def _crop(image: Any, top: int, left: int, height: int, width: int) -> Any:
    if isinstance(image, Tensor):
        return image[..., top : top + height, left : left + width]
    return image.crop((left, top, left + width, top + height))


def _flip(image: Any) -> Any:
    """Left becomes right."""
    if isinstance(image, Tensor):
        return image.flip(-1)
    from PIL import ImageOps

    return ImageOps.mirror(image)


def _pad(image: Any, border: int, fill: int = 0) -> Any:
    if isinstance(image, Tensor):
        return F.pad(image, (border,) * 4, value=fill)
    from PIL import ImageOps

    return ImageOps.expand(image, border, fill)
