"""`cache: 2GiB`: decoded images, kept in memory that all workers of a process share.

The memory is an anonymous mapping that workers inherit as they are forked: it has no
name, and whatever ends the processes gives it back.
"""

from __future__ import annotations

import copy
import logging
import mmap
import multiprocessing
import struct
from collections.abc import Callable
from typing import Any

import numpy as np

from devrun.data.datasets.folder import ImageFolder
from devrun.data.transforms import CenterCrop, Compose, Resize
from devrun.errors import ConfigError, UnsupportedFeatureError
from devrun.text import parsed_size, size_text

_INNER = ("dataset", "datasets")
_FIXED = (Resize, CenterCrop)
"""Transforms that make of an image always the same one."""
_HEADER = struct.Struct("II")

logger = logging.getLogger("devrun")


class _Memory:
    """`limit` bytes for images, which are never taken out again."""

    def __init__(self, limit: int) -> None:
        try:
            self.pages = mmap.mmap(-1, limit)  # of the system only once written
        except (OSError, OverflowError, ValueError) as error:
            raise ConfigError.of(
                "cache", f"of {size_text(limit)} cannot be had: {error}"
            ) from None
        self.limit = limit
        self.lock = multiprocessing.get_context("fork").Lock()
        self.used = _shared_integers(3)
        """Bytes; images that were given room; those that were refused it."""
        self.places: list[Any] = []
        """Of the images of each data set, see `_Images`."""
        self._told = False

    def reserve(self, size: int) -> int | None:
        """Where there is room for `size` bytes; None where there is none."""
        with self.lock:
            begin = int(self.used[0])
            fits = begin + size <= self.limit
            self.used[1 if fits else 2] += 1
            if not fits:
                return None
            self.used[0] = begin + size
        return begin

    def news(self) -> str | None:
        """That all images are here, or that there is no room for more; once."""
        used, given, refused = self.used.tolist()
        images = sum(map(len, self.places))
        if self._told or not (refused or given >= images):
            return None
        kept = sum(int((places > 0).sum()) for places in self.places)
        if not refused and kept < images:  # two workers had the same one
            return None
        self._told = True
        if not refused:
            return f"all {images} images are kept, {size_text(used)}"
        return (
            f"{size_text(self.limit)} are full with {kept} of {images} images "
            f"({kept / images:.0%}); the others are decoded each time"
        )

    def __reduce__(self) -> Any:
        raise UnsupportedFeatureError(
            "cache is shared with workers that are forked, not with those of another "
            "multiprocessing_context, which this device may need: leave it out, or "
            "take workers_per_gpu: 0",
            key="cache",
        )


class _Images:
    """`decode(index)`, and `fixed` transforms, of each image done once."""

    def __init__(
        self,
        decode: Callable[[int], Any],
        fixed: list[Any],
        count: int,
        memory: _Memory,
    ) -> None:
        self.decode, self.fixed = decode, Compose(fixed)
        self.memory = memory
        self.places = _shared_integers(count)
        memory.places.append(self.places)
        """Of the image of each index, plus 1; 0 for those that are not there."""

    def __call__(self, index: int) -> Any:
        from PIL import Image

        if place := int(self.places[index]):
            begin = place - 1 + _HEADER.size
            width, height = _HEADER.unpack_from(self.memory.pages, place - 1)
            pixels = memoryview(self.memory.pages)[begin : begin + 3 * width * height]
            return Image.frombytes("RGB", (width, height), pixels)
        image = self.fixed(self.decode(index))
        pixels = image.tobytes()
        room = self.memory.reserve(_HEADER.size + len(pixels))
        if room is not None:
            _HEADER.pack_into(self.memory.pages, room, *image.size)
            start = room + _HEADER.size
            self.memory.pages[start : start + len(pixels)] = pixels
            self.places[index] = room + 1  # last: others may read it from now on
        return image


def with_cache(dataset: Any, limit: str | int) -> tuple[Any, Callable[[], str | None]]:
    """A copy of `dataset` that decodes no image twice, up to `limit` bytes of them.

    What comes before the first random transform is done once, too. Second comes what
    to ask, in this process, for news of it.

    Raises:
        ConfigError: no such size, or a data set other than `ImageFolder`.
    """
    size = parsed_size(limit) if isinstance(limit, str) else limit
    if type(size) is not int or size <= 0:
        raise ConfigError.of("cache", f"takes a size such as 2GiB, got {limit!r}")
    done: list[str] = []
    memory = _Memory(size)
    cached = _cached(dataset, memory, done)
    after = f" after {', '.join(done)}" if done else ""
    logger.info(
        "cache: images are decoded once and kept%s, up to %s, one copy for all workers "
        "of this process; those beyond are read each time",
        after,
        size_text(size),
    )
    return cached, memory.news


def _cached(dataset: Any, memory: _Memory, done: list[str]) -> Any:
    own = getattr(dataset, "__dict__", {})
    made = copy.copy(dataset)
    for name in _INNER:
        if isinstance(inner := own.get(name), (list, tuple)):
            setattr(made, name, [_cached(each, memory, done) for each in inner])
            return made
        if inner is not None:
            setattr(made, name, _cached(inner, memory, done))
            return made
    kind = type(dataset)
    if getattr(kind, "__getitem__", None) is not ImageFolder.__getitem__:
        raise ConfigError.of(
            "cache", f"is for images of an ImageFolder, not for {kind.__name__}"
        )
    steps = list(getattr(dataset.pipeline, "transforms", ()))
    whole = type(dataset.pipeline) is Compose
    at = 0
    while whole and at < len(steps) and type(steps[at]) in _FIXED:
        at += 1
    fixed = steps[:at]
    done += [name for each in fixed if (name := type(each).__name__) not in done]
    made.decoded = _Images(dataset.decoded, fixed, len(dataset), memory)
    if at:
        made.pipeline = Compose(steps[at:])
    return made


def _shared_integers(count: int) -> Any:
    """Zeros that workers share, int64 of shape (count,)."""
    return np.frombuffer(mmap.mmap(-1, 8 * count), np.int64)
