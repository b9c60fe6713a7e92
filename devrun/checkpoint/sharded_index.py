"""`.shards.json`: in which file each piece of each sharded tensor is.

It says what the pickle `.metadata` beside it says, which is there for torch's own
tools (`torch.distributed.checkpoint`) and is never read here: no value of this one
names anything to import or call. Nothing in it is believed before the whole of it fits
the files at hand: each piece lies inside its file and shares no byte with another, it
can have the bytes that its type and sizes need, and the pieces of a tensor cover it
exactly.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from devrun.checkpoint import strict_json
from devrun.checkpoint.names import SHARDS, is_part
from devrun.errors import CheckpointError

_FILE = re.compile(r"__\d{1,9}_\d{1,9}\.distcp")
_TYPE = re.compile(r"b?float\d+(_\w+)?|complex\d+|u?int(8|16|32|64)|bool")
_MAX_DIMENSIONS = 64


@dataclass(frozen=True)
class Piece:
    """One box of a tensor, and the bytes of a file that `torch.save` wrote for it."""

    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    file: str
    at: int
    length: int


@dataclass(frozen=True)
class ShardedTensor:
    """A tensor's type and shape, and the pieces that it consists of."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    pieces: tuple[Piece, ...]


Like = Callable[[str, Sequence[int], torch.dtype], Tensor | None]
"""`PART/NAME`, shape and type of a tensor in pieces -> an empty one that is spread over
processes as this is to be; None for the whole of it, on the host."""
Index = Mapping[str, ShardedTensor]
"""`PART/NAME`, the name that the part's JSON has for it -> the tensor."""


def render(index: Index) -> bytes:
    """The bytes of the file."""
    tensors = {
        key: {
            "dtype": str(tensor.dtype).removeprefix("torch."),
            "shape": tensor.shape,
            "pieces": [asdict(piece) for piece in tensor.pieces],
        }
        for key, tensor in index.items()
    }
    return strict_json.dumps({"tensors": tensors})


def parse(data: bytes, sizes: Mapping[str, int]) -> Index:
    """The index in `data`; `sizes` has the bytes of each file of the checkpoint.

    Raises:
        CheckpointError: not as `render` gives it, or it does not fit the files.
    """
    try:
        record = strict_json.loads(data)
        if not isinstance(record, dict) or record.keys() != {"tensors"}:
            raise ValueError("a table of tensors was expected")
        index = {
            key: _tensor(key, facts, sizes) for key, facts in record["tensors"].items()
        }
        _check_places(piece for each in index.values() for piece in each.pieces)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise CheckpointError(f"{SHARDS} is damaged: {error!s:.200}") from error
    return index


def _tensor(key: str, facts: Mapping[str, Any], sizes: Mapping[str, int]) -> Any:
    part, _, name = key.partition("/")
    if not is_part(part) or not name:
        raise ValueError(f"{key!r:.80} is no tensor of a part")
    if facts.keys() != {"dtype", "shape", "pieces"}:
        raise ValueError(f"{key!r:.80} has the facts {list(facts)!r:.80}")
    dtype = getattr(torch, facts["dtype"]) if _TYPE.fullmatch(facts["dtype"]) else None
    if not isinstance(dtype, torch.dtype):
        raise ValueError(f"{key!r:.80} has the type {facts['dtype']!r:.80}")
    shape = _numbers(facts["shape"])
    if math.prod(size or 1 for size in shape) >= 1 << 63:
        raise ValueError(f"{key!r:.80} has the shape {shape!r:.80}")
    pieces = tuple(_piece(each, shape, dtype, sizes) for each in facts["pieces"])
    if sum(math.prod(piece.sizes) for piece in pieces) != math.prod(shape):
        raise ValueError(f"the pieces of {key!r:.80} are not all of it")
    if _overlap(pieces):
        raise ValueError(f"the pieces of {key!r:.80} overlap")
    return ShardedTensor(dtype, shape, pieces)


def _piece(
    facts: Mapping[str, Any],
    shape: tuple[int, ...],
    dtype: torch.dtype,
    sizes: Mapping[str, int],
) -> Piece:
    file = facts["file"]
    if not isinstance(file, str) or not _FILE.fullmatch(file) or file not in sizes:
        raise ValueError(f"it names a file {file!r:.80}: refused")
    offsets, extents = _numbers(facts["offsets"]), _numbers(facts["sizes"])
    at, length = _numbers([facts["at"], facts["length"]])
    piece = Piece(offsets, extents, file, at, length)
    if asdict(piece).keys() != facts.keys():
        raise ValueError(f"a piece has the facts {list(facts)!r:.80}")
    inside = len(offsets) == len(extents) == len(shape) and all(
        size > 0 and start + size <= end
        for start, size, end in zip(offsets, extents, shape, strict=True)
    )
    if not inside or at + length > sizes[file]:
        raise ValueError(f"a piece in {file} lies outside")
    if math.prod(extents) * dtype.itemsize > length:
        raise ValueError(f"a piece in {file} is larger than its {length} bytes")
    return piece


def _numbers(values: Any) -> tuple[int, ...]:
    if (
        not isinstance(values, list)
        or len(values) > _MAX_DIMENSIONS
        or any(type(n) is not int or not 0 <= n < 1 << 63 for n in values)
    ):
        raise ValueError(f"{values!r:.80} are no sizes")
    return tuple(values)


def _check_places(pieces: Iterable[Piece]) -> None:
    places = sorted((piece.file, piece.at, piece.length) for piece in pieces)
    for (file, at, length), (next_file, next_at, _) in itertools.pairwise(places):
        if file == next_file and at + length > next_at:
            raise ValueError(f"two pieces share bytes of {file}")


def _overlap(pieces: tuple[Piece, ...]) -> bool:
    """Whether any two boxes have an element in common.

    They are compared only while they overlap along the dimension that tells most apart.
    """
    if len(pieces) < 2:
        return False
    columns = list(zip(*(piece.offsets for piece in pieces), strict=True))
    if not columns:
        return True  # several pieces of one number
    axis = max(range(len(columns)), key=lambda d: len(set(columns[d])))
    ordered = sorted(pieces, key=lambda piece: piece.offsets[axis])
    for number, piece in enumerate(ordered):
        end = piece.offsets[axis] + piece.sizes[axis]
        for other in ordered[number + 1 :]:
            if other.offsets[axis] >= end:
                break
            if all(
                a < b + n and b < a + m
                for a, m, b, n in zip(
                    piece.offsets, piece.sizes, other.offsets, other.sizes, strict=True
                )
            ):
                return True
    return False
