"""Transforms that move pixels: crops, flips, sizes."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from typing import Any

from devrun.data.transforms import image as pixels
from devrun.errors import ConfigError, ConfigTypeError, DataError
from devrun.registry import TRANSFORMS


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
            return pixels.resize(image, *self.size)
        # cut off, not rounded, as torchvision and MMClassification do
        sides = pixels.size_of(image)
        height, width = (self.edge * side // min(sides) for side in sides)
        return pixels.resize(image, height, width)


@TRANSFORMS.register_module()
class CenterCrop:
    """The middle `size` (one number or (height, width)) of the image."""

    def __init__(self, size: int | Sequence[int]) -> None:
        self.size = _pair(size)

    def __call__(self, image: Any) -> Any:
        # rounded to even, as torchvision and MMClassification do
        top, left = (round(room / 2) for room in _room(self, image, self.size))
        return pixels.crop(image, top, left, *self.size)


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
            image = pixels.pad(image, self.padding, self.fill)
        height, width = _room(self, image, self.size)
        top, left = random.randint(0, height), random.randint(0, width)
        return pixels.crop(image, top, left, *self.size)


@TRANSFORMS.register_module()
class RandomHorizontalFlip:
    """Left and right exchanged with probability `p`."""

    def __init__(self, p: float = 0.5) -> None:
        if not 0 <= p <= 1:
            raise ConfigError.of("p", f"must be within 0 and 1, got {p}")
        self.p = p

    def __call__(self, image: Any) -> Any:
        return pixels.flip(image) if random.random() < self.p else image


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
        self.scale, self.ratio = _range("scale", scale), _range("ratio", ratio)

    def __call__(self, image: Any) -> Any:
        box = self._draw(*pixels.size_of(image))
        return pixels.resize(pixels.crop(image, *box), *self.size)

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


def _room(transform: Any, image: Any, size: tuple[int, int]) -> tuple[int, int]:
    """By how much the image is larger than `size`, in height and width."""
    height, width = pixels.size_of(image)
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


def _range(name: str, value: Sequence[float]) -> tuple[float, float]:
    if len(value) != 2 or not 0 < value[0] <= value[1]:
        raise ConfigError.of(name, f"must be (low, high) with 0 < low, got {value!r}")
    return value[0], value[1]
