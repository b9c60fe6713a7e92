"""A batch as the tuple of tensors that a compiled graph takes, and back."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from devrun.errors import ConfigError, ConfigTypeError, UnsupportedFeatureError
from devrun.step import MicroBatches
from devrun.tensors import INSIDE, replaced


@dataclass(frozen=True)
class _Place:
    """Stands for tensor number `index` in a template."""

    index: int


@dataclass(frozen=True)
class Flat:
    """A batch without its tensors, the tensors, and how a message names each."""

    template: Any
    tensors: tuple[Tensor, ...]
    names: tuple[str, ...]

    @property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        return tuple(tuple(tensor.shape) for tensor in self.tensors)

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

    def placed(value: Any, path: str) -> Any:
        if not isinstance(value, Tensor):
            return INSIDE
        tensors.append(value)
        names.append(path)
        return _Place(len(tensors) - 1)

    template = replaced(placed, batch, "batch")
    if half:
        tensors = [t.half() if t.is_floating_point() else t for t in tensors]
    return Flat(template, tuple(tensors), tuple(names))


def rebuild(template: Any, tensors: Sequence[Any]) -> Any:
    """The template with `tensors` in their places."""
    return replaced(
        lambda value, _: tensors[value.index] if isinstance(value, _Place) else INSIDE,
        template,
    )


def rows_of(flat: Flat, parts: int) -> int:
    """Rows of the batch, which must be the same for all tensors and divide by `parts`.

    Raises:
        ConfigError: naming the tensor and its shape.
    """
    if not flat.tensors:
        raise ConfigTypeError("a batch without tensors: an IPU has nothing to run on")
    rows = flat.tensors[0].shape[0] if flat.tensors[0].dim() else 1
    for tensor, name in zip(flat.tensors, flat.names, strict=True):
        size = tensor.shape[0] if tensor.dim() else 1
        if size != rows or (not tensor.dim() and parts > 1):
            raise ConfigError(
                f"{name} has the shape {tuple(tensor.shape)}, but {flat.names[0]} has "
                f"{rows} rows: on an IPU dimension 0 of every tensor of a batch is "
                "divided over the micro-batches, so all must have the same"
            )
        if size == 0:
            raise ConfigError(f"{name} has the shape {tuple(tensor.shape)}: no rows")
    return rows


class Difference(NamedTuple):
    """A tensor that has another shape than it had."""

    name: str
    shape: tuple[int, ...]
    other: tuple[int, ...]

    @property
    def dims(self) -> list[int]:
        """Those that differ, in both of which there are as many."""
        pairs = zip(self.shape, self.other, strict=True)
        return [dim for dim, (size, other) in enumerate(pairs) if size != other]


def differing(flat: Flat, known: Flat, *, any_rows: bool = False) -> list[Difference]:
    """The tensors of `flat` whose shape is not that of `known`.

    Args:
        any_rows: the first dimension may differ.
    """
    begin = int(any_rows)
    return [
        Difference(name, shape, other)
        for name, shape, other in zip(
            flat.names, flat.shapes, known.shapes, strict=True
        )
        if shape[begin:] != other[begin:]
    ]


class ShapesError(UnsupportedFeatureError, ConfigError):
    """Batches that differ in shape; `fix` has the config that gives them one."""

    def __init__(self, reason: str, different: Sequence[Difference]) -> None:
        self.fix = _one_shape(different)
        super().__init__(f"{reason}: {_remedy(different, self.fix)}")


def _remedy(different: Sequence[Difference], fix: Mapping[str, Any] | None) -> str:
    if any(len(each.shape) != len(each.other) for each in different):
        return "give every batch tensors of the same number of dimensions"
    if fix is None:
        return "resize or pad the samples to one size (dataset, or collate_fn)"
    ((key, value),) = fix.items()
    if value is True:
        return "drop_last: true leaves out the short last batch"
    line = str(value).replace("'", "")
    return f"{key}: {line} pads all to one size (docs/bucketing.md)"


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
    pad: Any = {key: -100 if _is_target(key) else 0 for key in keys}
    dim: Any = keys if len(set(keys.values())) > 1 else next(iter(keys.values()))
    spec = {"pad": pad.get("", pad), "dim": dim, "num": 1}
    if not dim:
        del spec["dim"]
    return {"data.buckets": spec}


def _key(name: str) -> str:
    """How `buckets` names a tensor: `a.0` for `batch['a'][0]`."""
    parts = re.findall(r"\['([^']*)'\]|\[(\d+)\]|\.(\w+)", name)
    return ".".join("".join(part) for part in parts)


def _is_target(key: str) -> bool:
    """Whether it is padded with what torch's cross entropy ignores."""
    return key.rpartition(".")[2] in ("labels", "label", "target", "targets")


def changed_constants(first: Any, now: Any, path: str = "batch") -> Iterator[str]:
    """Where `now` differs from `first` in what is not a tensor."""
    if isinstance(first, (tuple, list)) and type(first) is type(now):
        if len(first) != len(now):
            yield path
            return
        for index, (a, b) in enumerate(zip(first, now, strict=True)):
            yield from changed_constants(a, b, f"{path}[{index}]")
    elif isinstance(first, Mapping) and isinstance(now, Mapping):
        if first.keys() != now.keys():
            yield path
            return
        for key in first:
            yield from changed_constants(first[key], now[key], f"{path}[{key!r}]")
    elif isinstance(first, _Place) or isinstance(now, _Place):
        if first != now:
            yield path
    elif type(first) is not type(now) or (
        isinstance(first, (str, bytes, int, float, bool)) and first != now
    ):
        yield path


def _joined(parts: Sequence[Any]) -> Any:
    """Micro-batches one after the other along dimension 0, as one batch.

    Raises:
        ConfigError: they differ in shape or structure.
    """
    if len(parts) == 1:
        return parts[0]
    flats = [flatten(part) for part in parts]
    for flat in flats[1:]:
        if flat.names != flats[0].names:
            raise ConfigError(
                f"the micro-batches of one update have the tensors "
                f"{', '.join(flats[0].names)} and {', '.join(flat.names)}: on an IPU "
                "all must have the same"
            )
        if different := differing(flat, flats[0]):
            first = different[0]
            raise ShapesError(
                f"{first.name} has the shapes {first.other} and {first.shape} in the "
                "micro-batches of one update, and shapes are static on an IPU",
                different,
            )
    tensors = [
        torch.cat(same) for same in zip(*(f.tensors for f in flats), strict=True)
    ]
    return rebuild(flats[0].template, tensors)


def whole(batch: Any) -> Any:
    """`batch`, its parts joined where it is a list of micro-batches."""
    return _joined(batch) if isinstance(batch, MicroBatches) else batch
