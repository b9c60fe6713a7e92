"""Which tensor of a file is which of a model, found by what their names and shapes are.

The names on both sides are read by every layout in `layouts`, and as they stand, with
and without a prefix. Of all pairs of readings of one model the one under which the most
tensors have the same name and shape is the key map.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeGuard

import torch
from torch import Tensor

from devrun.checkpoint.layout_forms import Shape
from devrun.checkpoint.layouts import LAYOUTS, Layout, Piece, read
from devrun.errors import CheckpointError

DERIVED = ("num_batches_tracked", "relative_position_index", "attn_mask")
"""What is no weight: a counter of batch norms, and what a model makes of its sizes."""
_DEPTH, _SHARE = 3, 4
"""A prefix has at most so many parts, and at least one in so many of the keys."""
_MOST = 20_000
"""Tensors; of the models in `layouts` none has more."""


@dataclass(frozen=True)
class Reading:
    """The keys under `prefix` by our names, or by their own without a layout."""

    layout: Layout | None
    prefix: str
    tensors: Mapping[str, list[Piece]]
    shapes: Mapping[str, Shape]

    @property
    def model(self) -> str | None:
        return self.layout.model if self.layout else None

    def __str__(self) -> str:
        name = self.layout.names[0] if self.layout else ""
        under = f"under {self.prefix!r}" if self.prefix else ""
        return " ".join(filter(None, (name, under)))


@dataclass(frozen=True)
class KeyMap:
    """From the reading of a file to that of a model."""

    file: Reading
    model: Reading

    @functools.cached_property
    def common(self) -> list[str]:
        return [name for name in self.model.tensors if name in self.file.tensors]

    @functools.cached_property
    def fits(self) -> int:
        """Tensors of the model whose name and shape the file has."""
        return sum(
            len(self.model.tensors[name])
            for name in self.common
            if not name.endswith(DERIVED)
            and self.file.shapes[name] == self.model.shapes[name]
        )

    @property
    def changes(self) -> bool:
        return self.file.layout is not self.model.layout or (
            self.file.prefix != self.model.prefix
        )

    def sources(self) -> dict[str, tuple[str, ...]]:
        """Key of the model -> keys of the file."""
        return {
            piece.key: tuple(source.key for source in self.file.tensors[name])
            for name in self.common
            for piece in self.model.tensors[name]
        }

    def apply(self, state_dict: Mapping[str, Any]) -> dict[str, Tensor]:
        """The tensors of the file under the model's keys."""
        result = {}
        for name in self.common:
            whole = assembled(self.file.tensors[name], state_dict)
            result.update(taken_apart(whole, self.model.tensors[name]))
        return result

    @property
    def renames(self) -> bool:
        """Whether it changes the prefix of keys and nothing else."""
        return self.file.layout is None

    def rename(self, key: str) -> str:
        """A key of the file under the model's prefix, where it `renames`."""
        if not key.startswith(self.file.prefix):
            return key
        return self.model.prefix + key.removeprefix(self.file.prefix)

    def __str__(self) -> str:
        if self.renames:
            if self.file.prefix:
                return f"without the prefix {self.file.prefix!r}"
            return f"with the prefix {self.model.prefix!r}"
        return f"{self.file} -> {self.model} ({self.model.model})"


def find_key_map(
    own: Mapping[str, Any], state_dict: Mapping[str, Any]
) -> tuple[KeyMap | None, str]:
    """(the key map, if one is needed; what comes closest in words, if none fits).

    The keys as they are win over a map that fits no more tensors, and a map must fit
    half of the tensors on one side.

    Raises:
        CheckpointError: two maps fit as many tensors, in different places.
    """
    mine, theirs = _shapes(own), _shapes(state_dict)
    if mine == theirs:
        return None, ""
    if max(len(mine), len(theirs)) > _MOST:
        return None, "it has too many tensors to look for a key map"
    # theirs first where a map is its own inverse, so that its name tells what it is
    pairs = list(_pairs(_readings(theirs, LAYOUTS[::-1]), _readings(mine)))
    same = next((p.fits for p in pairs if not p.changes and p.renames), 0)
    best = max((pair.fits for pair in pairs), default=0)
    if best <= same or 2 * best < min(_counted(mine), _counted(theirs)):
        return None, _closest(pairs, mine, theirs)
    first, *others = [pair for pair in pairs if pair.changes and pair.fits == best]
    places = first.sources()
    for other in others:
        if any(places.get(key, keys) != keys for key, keys in other.sources().items()):
            raise CheckpointError(
                f"its tensors fit as well {first} as {other}; choose by revise_keys "
                "(--revise-keys), which can take a prefix off"
            )
    return first, ""


def _closest(
    pairs: list[KeyMap], mine: Mapping[str, Shape], theirs: Mapping[str, Shape]
) -> str:
    """The map under which half of the names agree; else whose keys they are."""
    best = max(pairs, key=lambda pair: len(pair.common))
    if 2 * len(best.common) < min(len(mine), len(theirs)):
        return f"its keys are {_described(theirs)}, the model's {_described(mine)}"
    file, model = best.file.shapes, best.model.shapes
    how = f"is the key map {best}" if best.changes else "are its keys as they are"
    found = (
        f"closest {how}: {len(best.common)} of {len(mine)} names agree and {best.fits} "
        "shapes"
    )
    other = next((name for name in best.common if file[name] != model[name]), None)
    if other is None:
        return found
    return (
        f"{found}, {other!r} is {list(file[other])} in the file and "
        f"{list(model[other])} in the model"
    )


def _described(shapes: Mapping[str, Shape]) -> str:
    """Whose keys these are, such as `those of timm (VisionTransformer)`."""
    found = [reading for reading in _readings(shapes) if reading.layout is not None]
    most = max(found, key=lambda reading: len(reading.tensors), default=None)
    if most is None or 2 * len(most.tensors) < len(shapes):
        return ", ".join(repr(name) for name in list(shapes)[:3])
    return f"those of {most} ({most.model})"


def relaid(state_dict: Mapping[str, Any], layout: str) -> dict[str, Any]:
    """The weights of a model in a layout of that name.

    Raises:
        CheckpointError: the keys are those of no model in the tables, or its tables
            have no such layout.
    """
    shapes = _shapes(state_dict)
    whole = [
        reading
        for reading in _readings(shapes)
        if reading.layout is not None
        and _counted(p.key for pieces in reading.tensors.values() for p in pieces)
        == _counted(state_dict)
    ]
    if not whole:
        models = ", ".join(dict.fromkeys(known.model for known in LAYOUTS))
        raise CheckpointError(
            f"its keys, {_described(shapes)}, are of no model whose layouts are known "
            f"({models}); leave --layout out to write them as they are"
        )
    reading = whole[0]
    layouts = [one for one in LAYOUTS if one.model == reading.model]
    target = next((one for one in layouts if layout in one.names), None)
    if target is None:
        known = ", ".join(name for one in layouts for name in one.names)
        raise CheckpointError(
            f"there is no layout {layout!r} of {reading.model}; known are {known}"
        )
    result: dict[str, Any] = {}
    for name, pieces in reading.tensors.items():
        written = target.write(name)
        if not written:
            raise CheckpointError(
                f"{pieces[0].key!r} has no place in the layout {layout!r} of "
                f"{reading.model}"
            )
        result.update(taken_apart(assembled(pieces, state_dict), written))
    return result


def assembled(pieces: list[Piece], state_dict: Mapping[str, Any]) -> Tensor:
    """The tensor, in our form, that is in these pieces."""
    found = [piece.form.ours(state_dict[piece.key]) for piece in pieces]
    return torch.cat(found) if len(found) > 1 else found[0]


def taken_apart(whole: Tensor, pieces: list[Piece]) -> dict[str, Tensor]:
    """The pieces of a tensor in our form, by their keys."""
    if whole.dim() == 0 or len(whole) % len(pieces):  # it will be of another shape
        return {piece.key: whole for piece in pieces}
    parts = whole.chunk(len(pieces)) if len(pieces) > 1 else (whole,)
    return {
        piece.key: piece.form.written(part)
        for piece, part in zip(pieces, parts, strict=True)
    }


def _shapes(state_dict: Mapping[str, Any]) -> dict[str, Shape]:
    return {
        key: tuple(value.shape) for key, value in state_dict.items() if is_dense(value)
    }


def is_dense(value: Any) -> TypeGuard[Tensor]:
    """Whether it is a tensor that can be taken apart and put together.

    None whose few values stand for many: a copy of it would have any size.
    """
    return (
        isinstance(value, Tensor)
        and not value.is_nested
        and value.layout == torch.strided
        and not value.is_quantized
        and value.numel() * value.element_size() <= value.untyped_storage().nbytes()
    )


def _counted(keys: Iterable[str]) -> int:
    return sum(not key.endswith(DERIVED) for key in keys)


def _prefixes(keys: Iterable[str]) -> list[str]:
    """The empty one, and what enough of the keys begin with."""
    names = list(keys)
    begins: Counter[str] = Counter()
    for name in names:
        parts = name.split(".")[:-1]
        for depth in range(1, min(_DEPTH, len(parts)) + 1):
            begins[".".join(parts[:depth]) + "."] += 1
    return ["", *(p for p, count in begins.items() if count * _SHARE >= len(names))]


def _readings(
    shapes: Mapping[str, Shape], layouts: Iterable[Layout] = LAYOUTS
) -> list[Reading]:
    found = []
    for prefix in _prefixes(shapes):
        keys = [key for key in shapes if key.startswith(prefix)]
        cut = len(prefix)
        plain = {key[cut:]: [Piece(key)] for key in keys}
        found.append(
            Reading(None, prefix, plain, {key[cut:]: shapes[key] for key in keys})
        )
        known: dict[Layout, dict[str, list[Piece]]] = {}
        for key in keys:
            for layout, (name, piece) in read(key[cut:]).items():
                pieces = known.setdefault(layout, {}).setdefault(name, [])
                pieces.append(piece._replace(key=key))
        for layout in layouts:
            whole, sizes = {}, {}
            for name, pieces in known.get(layout, {}).items():
                pieces.sort(key=lambda piece: piece.part)
                if (shape := _joined(pieces, shapes)) is not None:
                    whole[name], sizes[name] = pieces, shape
            if whole:
                found.append(Reading(layout, prefix, whole, sizes))
    return found


def _joined(pieces: list[Piece], shapes: Mapping[str, Shape]) -> Shape | None:
    """The shape of what is in these pieces; None if they are not all there."""
    if [piece.part for piece in pieces] != list(range(pieces[0].parts)):
        return None
    found = [piece.form.shape(shapes[piece.key]) for piece in pieces]
    first = found[0]
    if first is None or (len(found) > 1 and not (len(set(found)) == 1 and first)):
        return None
    return (len(found) * first[0], *first[1:]) if len(found) > 1 else first


def _pairs(file: list[Reading], model: list[Reading]) -> Iterator[KeyMap]:
    """Readings of one model: under one prefix, or one of them under one."""
    for theirs in file:
        for ours in model:
            if theirs.model == ours.model and (
                not (theirs.prefix and ours.prefix) or theirs.prefix == ours.prefix
            ):
                yield KeyMap(theirs, ours)
