"""Tensors to and from a safetensors file (github.com/huggingface/safetensors).

Each tensor is written from its own memory, piece by piece: the library's own writer
would need a second copy of the model, or a path instead of an open file.
"""

from __future__ import annotations

import ctypes
import json
from collections.abc import Iterator, Mapping
from typing import Any, Callable, Sequence

import safetensors.torch
import torch
from torch import Tensor

from devrun.tensors import nbytes
from devrun.torch_features import dtypes_in

STORED: dict[torch.dtype, str] = dtypes_in(
    {
        "float64": "F64",
        "float32": "F32",
        "float16": "F16",
        "bfloat16": "BF16",
        "int64": "I64",
        "int32": "I32",
        "int16": "I16",
        "int8": "I8",
        "uint64": "U64",
        "uint32": "U32",
        "uint16": "U16",
        "uint8": "U8",
        "bool": "BOOL",
        "float8_e4m3fn": "F8_E4M3",
        "float8_e5m2": "F8_E5M2",
    }
)
"""Types that every safetensors release since 0.4.3 reads."""

_SMALL = 1 << 16
Like = Callable[[str, Sequence[int], torch.dtype], "Tensor | None"]
"""`PART/NAME`, shape and type of a tensor in pieces -> an empty one that is spread over
processes as this is to be; None for the whole of it, on the host."""


def size_of(
    tensors: Mapping[str, Tensor], about: Mapping[str, str] | None = None
) -> int:
    """Bytes the file will have."""
    return len(_header(tensors, about)) + sum(map(nbytes, tensors.values()))


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
        size = nbytes(tensor)
        if not size:
            continue
        # By address: a view through NumPy would refuse bfloat16 and float8.
        address = (ctypes.c_ubyte * size).from_address(tensor.data_ptr())
        memory = memoryview(address)
        if size < _SMALL:
            together += memory
            continue
        if together:
            yield together
            together = bytearray()
        yield memory
    if together:
        yield together


def read(source: Any, load: Callable[[Any], Any] = safetensors.torch.load) -> Any:
    """The tensors in the bytes of a file; by `safetensors.torch.load_file`, at a path.

    Raises:
        ValueError: not a safetensors file.
    """
    try:
        return load(source)
    except OSError:
        raise
    except Exception as error:
        raise ValueError(f"not a safetensors file: {error!r:.200}") from error


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
            "data_offsets": [offset, offset + nbytes(tensor)],
        }
        offset += nbytes(tensor)
    text = json.dumps(entries, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text
