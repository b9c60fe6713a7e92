"""Tensors to and from a safetensors file, piece by piece.

Each tensor is written from its own memory and read into its own: no second copy of
the model is made either way. Format: an 8-byte little-endian header length, a JSON
header padded with blanks, then the data without gaps
(github.com/huggingface/safetensors).
"""

from __future__ import annotations

import ctypes
import errno
import itertools
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from devrun.checkpoint import strict_json

STORED: dict[torch.dtype, str] = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint64: "U64",
    torch.uint32: "U32",
    torch.uint16: "U16",
    torch.uint8: "U8",
    torch.bool: "BOOL",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
}
"""Types that every safetensors release since 0.4.3 reads."""

_LATER = {"C64": "complex64", "F8_E8M0": "float8_e8m0fnu"}
_READ = {name: dtype for dtype, name in STORED.items()} | {
    name: getattr(torch, dtype)
    for name, dtype in _LATER.items()
    if hasattr(torch, dtype)
}
_SMALL = 1 << 16
_MAX_HEADER = 100_000_000  # of the format
_MAX_DIMENSIONS = 64
Fill = Callable[[memoryview], None]
Like = Callable[[str, Sequence[int], torch.dtype], "Tensor | None"]
"""`PART/NAME`, shape and type of a tensor in pieces -> an empty one that is spread over
processes as this is to be; None for the whole of it, on the host."""


def size_of(
    tensors: Mapping[str, Tensor], about: Mapping[str, str] | None = None
) -> int:
    """Bytes the file will have."""
    return len(_header(tensors, about)) + sum(t.nbytes for t in tensors.values())


def pieces(
    tensors: Mapping[str, Tensor], about: Mapping[str, str] | None = None
) -> Iterator[bytearray | memoryview]:
    """The file, in order: the header, then the memory of each contiguous CPU tensor.

    Small tensors come together, copied: a write of its own costs more than that.

    Args:
        about: what the header is to say beside the tensors.
    """
    together = bytearray(_header(tensors, about))
    for name in _order(tensors):
        tensor = tensors[name]
        if not tensor.nbytes:
            continue
        # By address: a view through NumPy would refuse bfloat16 and float8.
        address = (ctypes.c_ubyte * tensor.nbytes).from_address(tensor.data_ptr())
        memory = memoryview(address)
        if tensor.nbytes < _SMALL:
            together += memory
            continue
        if together:
            yield together
            together = bytearray()
        yield memory
    if together:
        yield together


def read(fill: Fill, size: int) -> dict[str, Tensor]:
    """The tensors of a file of `size` bytes, of which `fill` gives the next ones.

    Memory is claimed only for what the header gives a place in such a file.

    Raises:
        ValueError: not a safetensors file.
    """
    length = int.from_bytes(_filled(fill, min(8, size)).numpy().tobytes(), "little")
    if size < 8 or length > min(size - 8, _MAX_HEADER):
        raise ValueError("not a safetensors file: it has no header")
    header = strict_json.loads(_filled(fill, length).numpy().tobytes())
    if not isinstance(header, dict):
        raise ValueError("not a safetensors file: its header is no table")
    about = header.pop("__metadata__", None) or {}
    if not isinstance(about, dict) or any(type(v) is not str for v in about.values()):
        raise ValueError("not a safetensors file: its metadata are not strings")
    entries = sorted(map(_entry, header.items()), key=lambda entry: entry.place)
    end = 0
    for entry in entries:
        if entry.place[0] != end:
            raise ValueError(f"tensor {entry.name!r:.80} is not where the last ends")
        end = entry.place[1]
    if end != size - 8 - length:
        raise ValueError(f"its tensors have {end} bytes of {size - 8 - length}")
    return {
        entry.name: data.view(entry.dtype).view(entry.shape)
        for entry, data in zip(entries, _data(fill, entries), strict=True)
    }


class _Entry(NamedTuple):
    name: str
    dtype: torch.dtype
    shape: list[int]
    place: tuple[int, int]
    """The first byte, and the one behind the last."""

    @property
    def size(self) -> int:
        return self.place[1] - self.place[0]


def _entry(item: tuple[str, Any]) -> _Entry:
    name, facts = item
    try:
        dtype, shape = _READ[facts["dtype"]], facts["shape"]
        begin, end = facts["data_offsets"]
        numbers = [*shape, begin, end]
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"tensor {name!r:.80} is {facts!r:.200}") from error
    if (
        type(shape) is not list
        or len(shape) > _MAX_DIMENSIONS
        or any(type(n) is not int or not 0 <= n < 1 << 63 for n in numbers)
        or math.prod(n or 1 for n in shape) >= 1 << 63
    ):
        raise ValueError(f"tensor {name!r:.80} has the shape {shape!r:.80}")
    if end - begin != math.prod(shape) * dtype.itemsize:
        raise ValueError(f"tensor {name!r:.80} has {end - begin} bytes for {shape}")
    return _Entry(name, dtype, shape, (begin, end))


def _data(fill: Fill, entries: list[_Entry]) -> Iterator[Tensor]:
    """The bytes of each tensor in memory of its own; small ones are read together."""
    for small, group in itertools.groupby(entries, lambda entry: entry.size < _SMALL):
        sizes = [entry.size for entry in group]
        if small:
            together = _filled(fill, sum(sizes))
            yield from (part.clone() for part in together.split(sizes))
        else:
            yield from (_filled(fill, size) for size in sizes)


def _filled(fill: Fill, size: int) -> Tensor:
    try:
        data = torch.empty(size, dtype=torch.uint8)
    except RuntimeError as error:
        raise OSError(errno.ENOMEM, f"no {size} bytes of memory for it") from error
    fill(data.numpy().data)
    return data


def _order(tensors: Mapping[str, Tensor]) -> list[str]:
    # Widest elements first keeps every tensor aligned to its own element size.
    return sorted(tensors, key=lambda name: (-tensors[name].element_size(), name))


def _header(
    tensors: Mapping[str, Tensor], about: Mapping[str, str] | None = None
) -> bytes:
    entries: dict[str, Any] = {"__metadata__": about} if about else {}
    offset = 0
    for name in _order(tensors):
        tensor = tensors[name]
        entries[name] = {
            "dtype": STORED[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [offset, offset + tensor.nbytes],
        }
        offset += tensor.nbytes
    text = json.dumps(entries, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text
