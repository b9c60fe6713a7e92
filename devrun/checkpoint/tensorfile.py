"""Tensors to and from a safetensors file, written piece by piece.

The writer streams each tensor from its own memory: no second copy of the model is
made, and every write goes through `fileops`. Reading takes the bytes that were
verified, never the file again. Format: an 8-byte little-endian header length, a JSON
header padded with blanks, then the data (github.com/huggingface/safetensors).
"""

from __future__ import annotations

import ctypes
import json
from collections.abc import Iterator, Mapping

import safetensors
import safetensors.torch
import torch
from torch import Tensor

__all__ = ["STORED", "parse", "pieces", "size_of"]

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

_SMALL = 1 << 16


def size_of(tensors: Mapping[str, Tensor]) -> int:
    """Bytes the file will have."""
    return len(_header(tensors)) + sum(t.nbytes for t in tensors.values())


def pieces(tensors: Mapping[str, Tensor]) -> Iterator[bytearray | memoryview]:
    """The file, in order: the header, then the memory of each contiguous CPU tensor.

    Small tensors come together, copied: a write of its own costs more than that.
    """
    together = bytearray(_header(tensors))
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


def parse(data: bytes) -> dict[str, Tensor]:
    """The tensors of a file's bytes, each in memory of its own.

    Raises:
        ValueError: not a safetensors file.
    """
    try:
        return safetensors.torch.load(data)
    except (safetensors.SafetensorError, KeyError, ValueError, RuntimeError) as error:
        raise ValueError(f"not a safetensors file: {error}") from error


def _order(tensors: Mapping[str, Tensor]) -> list[str]:
    # Widest elements first keeps every tensor aligned to its own element size.
    return sorted(tensors, key=lambda name: (-tensors[name].element_size(), name))


def _header(tensors: Mapping[str, Tensor]) -> bytes:
    entries, offset = {}, 0
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
