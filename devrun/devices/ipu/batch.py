"""A batch as the tuple of tensors that a compiled graph takes, and back."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from devrun.errors import ConfigError, ConfigTypeError, UnsupportedFeatureError
from devrun.step import MicroBatches
from devrun.tensors import INSIDE, replaced


@dataclass(frozen=True)
class _Slot:
    """Stands for tensor number `index` in a template."""

    index: int


@dataclass(frozen=True)
class Flat:
    """A batch without its tensors, the tensors, and how a message names each."""

    template: Any
    tensors: tuple[Tensor, ...]
    names: tuple[str, ...]
    constants: Mapping[str, Any] = field(default_factory=dict)
    """Path -> number or text, which a graph keeps as it was at first."""

    @property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        return tuple(tuple(tensor.shape) for tensor in self.tensors)

    @property
    def kinds(self) -> list[str]:
        """`NAME (DTYPE)` of each tensor."""
        pairs = zip(self.names, self.tensors)
        return [f"{name} ({tensor.dtype})" for name, tensor in pairs]

    def take(self, rows: Tensor) -> tuple[Tensor, ...]:
        """The tensors with these rows of each."""
        return tuple(tensor.index_select(0, rows) for tensor in self.tensors)


def flatten(batch: Any, half: bool = False) -> Flat:
    """Tensors in tuples, lists, mappings and dataclasses, however deep.

    Args:
        half: floating-point tensors as float16.
    """
    tensors: list[Tensor] = []
    names: list[str] = []
    constants: dict[str, Any] = {}

    def placed(value: Any, path: str) -> Any:
        if isinstance(value, (str, bytes, int, float)):
            constants[path] = value
        if not isinstance(value, Tensor):
            return INSIDE
        tensors.append(value)
        names.append(path)
        return _Slot(len(tensors) - 1)

    template = replaced(placed, batch, "batch")
    if half:
        tensors = [t.half() if t.is_floating_point() else t for t in tensors]
    return Flat(template, tuple(tensors), tuple(names), constants)


def rebuild(template: Any, tensors: Sequence[Any]) -> Any:
    """The template with `tensors` in their places."""
    return replaced(
        lambda value, _: tensors[value.index] if isinstance(value, _Slot) else INSIDE,
        template,
    )


def rows_of(flat: Flat, parts: int) -> int:
    """Rows of the batch, which must be the same for all tensors.

    Args:
        parts: micro-batches that the rows are divided over.

    Raises:
        ConfigError: naming the tensor and its shape.
    """
    if not flat.tensors:
        raise ConfigTypeError("a batch without tensors: an IPU has nothing to run on")
    rows = flat.tensors[0].shape[0] if flat.tensors[0].dim() else 1
    for tensor, name in zip(flat.tensors, flat.names):
        size = tensor.shape[0] if tensor.dim() else 1
        if size != rows or size == 0 or (not tensor.dim() and parts > 1):
            raise ConfigError(
                f"{name} has the shape {tuple(tensor.shape)}, but {flat.names[0]} has "
                f"{rows} rows: on an IPU dimension 0 of every tensor of a batch is "
                "divided over the micro-batches, so all must have the same"
            )
    return rows


class Difference(NamedTuple):
    """A tensor that has another shape than it had."""

    name: str
    shape: tuple[int, ...]
    other: tuple[int, ...]

    @property
    def dims(self) -> list[int]:
        """Those that differ, in both of which there are as many."""
        pairs = zip(self.shape, self.other)
        return [dim for dim, (size, other) in enumerate(pairs) if size != other]


def differing(flat: Flat, known: Flat, *, any_rows: bool = False) -> list[Difference]:
    """The tensors of `flat` whose shape is not that of `known`.

    Args:
        any_rows: the first dimension may differ.
    """
    begin = int(any_rows)
    return [
        Difference(name, shape, other)
        for name, shape, other in zip(flat.names, flat.shapes, known.shapes)
        if shape[begin:] != other[begin:]
    ]


class ShapesError(UnsupportedFeatureError, ConfigError):
    """Batches that differ in shape; `fix` has the config that gives them one."""

    def __init__(self, reason: str, different: Sequence[Difference]) -> None:
        self.fix = _one_shape(different)
        fixed = ", ".join(f"{k}: {v}" for k, v in (self.fix or {}).items())
        remedy = (
            f"set {fixed} (docs/bucketing.md)".replace("'", "")
            if fixed
            else "resize or pad the samples to one size (dataset, or collate_fn)"
        )
        super().__init__(f"{reason}: {remedy}")


def _one_shape(different: Sequence[Difference]) -> dict[str, Any] | None:
    """The key and value of a config with which all batches have one shape."""
    if any(len(each.shape) != len(each.other) for each in different):
        return None
    inner = {each.name: [dim for dim in each.dims if dim] for each in different}
    if not any(inner.values()):
        return {"data.train_dataloader.drop_last": True}
    if any(len(dims) > 1 for dims in inner.values()):
        return None
    keys = {_key(name): dims[0] - 1 for name, dims in inner.items() if dims}
    if len(set(keys.values())) > 1 or None in keys:
        return None  # buckets pad one dimension, of a sample's own tensors
    pad: Any = {key: -100 if key in _TARGETS else 0 for key in keys}
    dim = next(iter(keys.values()))
    spec = {"pad": pad.get("", pad), "num": 1, **({"dim": dim} if dim else {})}
    return {"data.buckets": spec}


def _key(name: str) -> str | None:
    """How `buckets` names a tensor: `a` for `batch['a']`; None for one further in."""
    found = re.fullmatch(r"batch(?:\['([^']*)'\]|\[(\d+)\]|\.(\w+))?", name)
    return None if found is None else "".join(filter(None, found.groups()))


_TARGETS = ("labels", "label", "target", "targets")
"""What is padded with what torch's cross entropy ignores."""


def whole(batch: Any) -> Any:
    """`batch`, its parts joined along dimension 0 where it is a list of micro-batches.

    Raises:
        ConfigError: they differ in shape or structure.
    """
    if not isinstance(batch, MicroBatches) or len(batch) == 1:
        return batch[0] if isinstance(batch, MicroBatches) else batch
    first, *others = (flatten(part) for part in batch)
    for flat in others:
        if flat.names != first.names:
            raise ConfigError(
                "the micro-batches of one update have the tensors "
                f"{', '.join(first.names)} and {', '.join(flat.names)}: on an IPU all "
                "must have the same"
            )
        if different := differing(flat, first):
            one = different[0]
            raise ShapesError(
                f"{one.name} has the shapes {one.other} and {one.shape} in the "
                "micro-batches of one update, and shapes are static on an IPU",
                different,
            )
    columns = zip(first.tensors, *(flat.tensors for flat in others))
    return rebuild(first.template, [torch.cat(same) for same in columns])
