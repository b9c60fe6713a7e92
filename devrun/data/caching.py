"""`cache: 2GiB`: decoded images, kept in memory that all workers of a process share.

The memory is an anonymous mapping that workers inherit as they are forked: it has no
name, and whatever ends the processes gives it back.
"""

from __future__ import annotations

import mmap
import multiprocessing
import struct
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from devrun.data.datasets.images import ImageFolder
from devrun.errors import ConfigError, UnsupportedFeatureError
from devrun.text import parsed_size, size_text

_HEADER = struct.Struct("II")


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
    """`decode(index)` of each image done once."""

    def __init__(
        self, decode: Callable[[int], Any], count: int, memory: _Memory
    ) -> None:
        self.decode, self.memory = decode, memory
        self.offsets = _shared_integers(count)
        """Of the image of each index, plus 1; 0 for those that are not there."""

    def __call__(self, index: int) -> Any:
        from PIL import Image

        if offset := int(self.offsets[index]):
            begin = offset - 1 + _HEADER.size
            width, height = _HEADER.unpack_from(self.memory.pages, offset - 1)
            pixels = memoryview(self.memory.pages)[begin : begin + 3 * width * height]
            return Image.frombytes("RGB", (width, height), pixels)
        image = self.decode(index)
        pixels = image.tobytes()
        room = self.memory.reserve(_HEADER.size + len(pixels))
        if room is not None:
            _HEADER.pack_into(self.memory.pages, room, *image.size)
            start = room + _HEADER.size
            self.memory.pages[start : start + len(pixels)] = pixels
            self.offsets[index] = room + 1  # last: others may read it from now on
        return image


def keep_images(dataset: Any, limit: str | int) -> None:
    """Have `dataset` decode no image twice, up to `limit` bytes of them.

    Raises:
        ConfigError: no such size, or a data set other than `ImageFolder`.
    """
    size = parsed_size(limit) if isinstance(limit, str) else limit
    if type(size) is not int or size <= 0:
        raise ConfigError.of("cache", f"takes a size such as 2GiB, got {limit!r}")
    memory = _Memory(size)
    for folder in _folders(dataset):
        vars(folder)["decoded"] = _Images(folder.decoded, len(folder), memory)


def _folders(dataset: Any) -> Iterator[ImageFolder]:
    """Those that a data set is made of."""
    own = getattr(dataset, "__dict__", {})
    inner = own.get("datasets", [own["dataset"]] if "dataset" in own else ())
    if inner:
        for each in inner:
            yield from _folders(each)
    elif isinstance(dataset, ImageFolder):
        yield dataset
    else:
        raise ConfigError.of(
            "cache",
            f"is for images of an ImageFolder, not for {type(dataset).__name__}",
        )


def _shared_integers(count: int) -> Any:
    """Zeros that workers share, int64 of shape (count,)."""
    return np.frombuffer(mmap.mmap(-1, 8 * count), np.int64)
