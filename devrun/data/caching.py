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
        self.used = _shared_integers(1)

    def reserve(self, size: int) -> int | None:
        """Where there is room for `size` bytes; None where there is none."""
        with self.lock:
            begin = int(self.used[0])
            if begin + size > self.limit:
                return None
            self.used[0] = begin + size
        return begin

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


def with_cache(dataset: Any, limit: str | int) -> Any:
    """A copy of `dataset` that decodes no image twice, up to `limit` bytes of them.

    What comes before the first random transform is done once, too.

    Raises:
        ConfigError: no such size, or a data set other than `ImageFolder`.
    """
    size = parsed_size(limit) if isinstance(limit, str) else limit
    if type(size) is not int or size <= 0:
        raise ConfigError.of("cache", f"takes a size such as 2GiB, got {limit!r}")
    logger.info(
        "cache: images are decoded once and kept, up to %s, one copy for all workers "
        "of this process; those beyond are decoded each time",
        size_text(size),
    )
    return _cached(dataset, _Memory(size))


def _cached(dataset: Any, memory: _Memory) -> Any:
    own = getattr(dataset, "__dict__", {})
    made = copy.copy(dataset)
    for name in _INNER:
        if isinstance(inner := own.get(name), (list, tuple)):
            setattr(made, name, [_cached(each, memory) for each in inner])
            return made
        if inner is not None:
            setattr(made, name, _cached(inner, memory))
            return made
    kind = type(dataset)
    if getattr(kind, "__getitem__", None) is not ImageFolder.__getitem__:
        raise ConfigError.of(
            "cache", f"is for images of an ImageFolder, not for {kind.__name__}"
        )
    at, steps = 0, []
    if type(dataset.pipeline) is Compose:
        steps = list(dataset.pipeline.transforms)
    while at < len(steps) and type(steps[at]) in _FIXED:
        at += 1
    made.decoded = _Images(dataset.decoded, steps[:at], len(dataset), memory)
    if at:
        made.pipeline = Compose(steps[at:])
    return made


def _shared_integers(count: int) -> Any:
    """Zeros that workers share, int64 of shape (count,)."""
    return np.frombuffer(mmap.mmap(-1, 8 * count), np.int64)
