"""Image transforms for `pipeline` lists: on tensors (C, H, W) and on Pillow images.

    pipeline:
    - {type: RandomResizedCrop, size: 224}
    - {type: RandomHorizontalFlip}
    - {type: ToTensor}
    - {type: Normalize, mean: [0.485, 0.456, 0.406], std: [0.229, 0.224, 0.225]}

Random ones draw from Python's `random`, which the loader seeds for each sample. A
dotted path names anybody else's: `type: torchvision.transforms.v2.ColorJitter`.
"""

from __future__ import annotations

import math
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
class Resize:
    """To `size`: (height, width), or the shorter edge as one number or (n, -1)."""

    def __init__(self, size: int | Sequence[int]) -> None:
        if isinstance(size, (list, tuple)) and len(size) == 2 and size[1] == -1:
            size = size[0]
        self.edge = size if isinstance(size, int) else None
        self.size = _pair(size)

    def __call__(self, image: Any) -> Any:
        if self.edge is None:
            return _resize(image, *self.size)
        # cut off, not rounded, as torchvision and MMClassification do
        sides = _size_of(image)
        height, width = (self.edge * side // min(sides) for side in sides)
        return _resize(image, height, width)


@TRANSFORMS.register_module()
class CenterCrop:
    """The middle `size` (one number or (height, width)) of the image."""

    def __init__(self, size: int | Sequence[int]) -> None:
        self.size = _pair(size)

    def __call__(self, image: Any) -> Any:
        # rounded to even, as torchvision and MMClassification do
        top, left = (round(room / 2) for room in _room(self, image, self.size))
        return _crop(image, top, left, *self.size)


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
        height, width = _room(self, image, self.size)
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
class RandomResizedCrop:
    """A part of random area and shape, resized to `size`: the Inception crop.

    Szegedy et al., "Going deeper with convolutions" (2015), section 6: 8 to 100 per
    cent of the area, aspect ratio between 3/4 and 4/3. When ten draws do not fit
    into the image, the largest middle part with an allowed ratio is taken.
    """

    def __init__(
        self,
        size: int | Sequence[int],
        scale: Sequence[float] = (0.08, 1.0),
        ratio: Sequence[float] = (3 / 4, 4 / 3),
    ) -> None:
        self.size = _pair(size)
        self.scale, self.ratio = scale, ratio

    def __call__(self, image: Any) -> Any:
        box = self._draw(*_size_of(image))
        return _resize(_crop(image, *box), *self.size)

    def _draw(self, height: int, width: int) -> tuple[int, int, int, int]:
        low, high = map(math.log, self.ratio)
        for _ in range(10):
            area = height * width * random.uniform(*self.scale)
            ratio = math.exp(random.uniform(low, high))
            w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
            if 0 < w <= width and 0 < h <= height:
                top, left = random.randint(0, height - h), random.randint(0, width - w)
                return top, left, h, w
        ratio = min(max(width / height, self.ratio[0]), self.ratio[1])
        w, h = min(width, round(height * ratio)), min(height, round(width / ratio))
        return (height - h) // 2, (width - w) // 2, max(1, h), max(1, w)


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


def _room(transform: Any, image: Any, size: tuple[int, int]) -> tuple[int, int]:
    """By how much the image is larger than `size`, in height and width."""
    height, width = _size_of(image)
    if height < size[0] or width < size[1]:
        raise DataError(
            f"{type(transform).__name__}: an image of {height} x {width} is smaller "
            f"than {size[0]} x {size[1]}"
        )
    return height - size[0], width - size[1]


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


def _resize(image: Any, height: int, width: int) -> Any:
    """Bilinear, with the filter widened when shrinking, as Pillow does it."""
    if _size_of(image) == (height, width):
        return image
    if not isinstance(image, Tensor):
        from PIL import Image

        return image.resize((width, height), Image.Resampling.BILINEAR)
    resized = F.interpolate(
        image.unsqueeze(0).float(), (height, width), mode="bilinear", antialias=True
    ).squeeze(0)
    if image.is_floating_point():
        return resized.to(image.dtype)
    return resized.round_().clamp_(0, 255).to(image.dtype)
