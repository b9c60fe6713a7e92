"""Bucketing: a few batch shapes, chosen from the data, instead of one for each length.

Whatever compiles or captures per shape (an HPU graph, a CUDA graph, torch.compile,
an IPU executable) then does so a few times, at the price of some padding.
"""

from __future__ import annotations

import copy
import logging
import math
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.data import (
    DataLoader,
    IterableDataset,
    default_collate,
)

from devrun.data.facts import column
from devrun.data.sampler import SampleKey
from devrun.data.seeded import SeededDataset
from devrun.errors import ConfigError, ConfigTypeError, DataError, nearest

_OBSERVED = 1000
"""Samples, evenly spaced, that are read to learn their lengths."""
WAYS = ("quantiles", "longest")

logger = logging.getLogger("devrun")


@dataclass(frozen=True)
class Buckets:
    """The sizes that batches are padded to, ascending; without any, the longest
    sample of each batch decides."""

    sizes: tuple[int, ...]
    multiple_of: int = 1

    def fit(self, length: int) -> int:
        """The size for a batch whose longest sample has `length`.

        Raises:
            DataError: it is too long.
        """
        if not self.sizes:
            return _rounded(length, self.multiple_of)
        if length > self.sizes[-1]:
            raise DataError(
                f"a sample of length {length} is above the largest bucket, "
                f"{self.sizes[-1]}: cut it in the data set, or give larger sizes"
            )
        return self.sizes[bisect_left(self.sizes, length)]

    def __str__(self) -> str:
        if not self.sizes:
            return "the longest sample of each batch"
        sizes = ", ".join(map(str, self.sizes))
        return f"{len(self.sizes)} size{'s' * (len(self.sizes) > 1)} ({sizes})"


@dataclass(frozen=True)
class Padding:
    """The tensors of a sample that are padded together, all to one size.

    `values` has for each key what its tensor is padded with, `dim` is the dimension of
    a sample's tensor that varies. The key None is the sample itself.
    """

    values: Mapping[Any, float]
    dim: int

    def length(self, item: Any, *, batched: bool = False) -> int:
        """The longest of the tensors of a sample, or of a batch; 0 without any."""
        sizes = (self._size(item, key, batched) for key in self.values)
        return max(sizes, default=0)

    def padded(self, item: Any, size: int, *, batched: bool = False) -> Any:
        """A copy of a sample, or of a batch, with its tensors at `size`."""
        made = item
        for key, value in self.values.items():
            tensor = _tensor_at(item, key)
            made = _put(made, key, resized(tensor, self._at(batched), size, value))
        return made

    def _at(self, batched: bool) -> int:
        """The dimension; a batch has one more in front."""
        return self.dim + 1 if batched and self.dim >= 0 else self.dim

    def _size(self, item: Any, key: Any, batched: bool) -> int:
        tensor, dim = _tensor_at(item, key), self._at(batched)
        if not -tensor.dim() <= dim < tensor.dim():
            raise ConfigError(
                f"{key!r} has the shape {tuple(tensor.shape)}{' in a batch' * batched} "
                f"and no dimension {self.dim} that could vary"
            )
        return tensor.shape[dim]


class BucketCollate:
    """`collate_fn` whose batches have one of the sizes of `buckets`.

    With torch's default collate function the samples are padded before it, since it
    could not stack them; the output of any other is padded after it. The caller's
    samples are not changed. A worker can have it.

    Raises:
        ConfigError: a key is not there or cannot be padded.
        DataError: a sample is too long.
    """

    def __init__(
        self, collate_fn: Callable[[Any], Any], padding: Padding, buckets: Buckets
    ) -> None:
        self.collate_fn = collate_fn
        self.padding, self.buckets = padding, buckets

    def __call__(self, samples: Any) -> Any:
        if self.collate_fn is default_collate:
            size = self.buckets.fit(max(map(self.padding.length, samples)))
            return default_collate([self.padding.padded(s, size) for s in samples])
        batch = self.collate_fn(samples)
        size = self.buckets.fit(self.padding.length(batch, batched=True))
        return self.padding.padded(batch, size, batched=True)


def bucketed(
    loader: DataLoader[Any],
    *,
    pad: Mapping[Any, float] | float,
    dim: int = 0,
    sizes: str | Sequence[int] = "quantiles",
    num: int = 8,
    multiple_of: int = 1,
) -> DataLoader[Any]:
    """A copy of `loader` whose batches are padded to a small set of sizes.

    Which samples make a batch does not change, and neither do workers or sampler, so
    it can be sharded and resumed like the original. The sizes are logged once. Lengths
    are those that the data set has in `lengths`, one whole number for each sample, or
    else of 1000 samples that are read.

    Args:
        pad: key -> value to pad with, for everything that varies; a number alone if a
            sample is one tensor. The key of a part of a tuple is its place.
        dim: of a sample's tensors, the one that varies.
        sizes: `quantiles`, at most `num` that get equally many batches; a list; or
            `longest`: no buckets, each batch is padded to its longest sample.
        multiple_of: chosen sizes are rounded up to one.

    Raises:
        ConfigError: a value out of range, or a key that the samples do not have.
        DataError: samples that are too long.
    """
    if not isinstance(loader, DataLoader):
        raise ConfigTypeError(f"buckets take a DataLoader: {type(loader).__name__}")
    _check(sizes, num, multiple_of)
    padded: Any = copy.copy(loader)
    vars(padded)["_iterator"] = None  # persistent workers have the old collate function
    padding = _padding(pad, dim)
    lengths = _lengths(loader, padding)
    chosen: Sequence[int] = ()
    if not isinstance(sizes, str):
        chosen = sorted(set(sizes))
    elif sizes == "quantiles":
        size = loader.batch_size or getattr(loader.batch_sampler, "batch_size", None)
        chosen = _quantiles(lengths, num, multiple_of, size or 1)
    buckets = Buckets(tuple(chosen), multiple_of)
    if len(lengths):
        buckets.fit(int(lengths.max()))  # what is too long is told now
    name = type(loader.dataset).__name__
    logger.info("batches of %s are padded to %s", name, buckets)
    padded.collate_fn = BucketCollate(loader.collate_fn, padding, buckets)
    return padded  # type: ignore[no-any-return]


def resized(tensor: Tensor, dim: int, size: int, value: float) -> Tensor:
    """`tensor` filled up to `size` along `dim` with `value` at its end."""
    missing = size - tensor.shape[dim]
    behind = tensor.dim() - 1 - dim % tensor.dim()  # F.pad counts from the last one
    return F.pad(tensor, [0, 0] * behind + [0, missing], value=value)


def _tensor_at(item: Any, key: Any) -> Tensor:
    """The part of a sample or a batch at `key`; arrays and lists of numbers too."""
    try:
        return torch.as_tensor(item if key is None else item[_in(item, key)])
    except (KeyError, IndexError):
        known = item if isinstance(item, Mapping) else range(len(item))
        raise ConfigError(
            f"no {key!r} in a {type(item).__name__} of the data; "
            f"{nearest(str(key), map(str, known))}"
        ) from None
    except (TypeError, ValueError, RuntimeError) as error:
        raise ConfigError(
            f"{key!r} of a {type(item).__name__} cannot be padded: pad takes the keys "
            "of tensors, arrays and lists of numbers, such as {input_ids: 0} or {0: 0}"
        ) from error


def _in(item: Any, key: Any) -> Any:
    """`key` as `item` has it: in a JSON config, the places of a tuple are texts."""
    place = isinstance(key, str) and key.isdecimal() and not isinstance(item, Mapping)
    return int(key) if place else key


def _put(item: Any, key: Any, value: Any) -> Any:
    """A copy of `item` with `value` at `key`; what is elsewhere is shared."""
    if key is None:
        return value
    if isinstance(item, Mapping):
        copied: Any = copy.copy(item)
        copied[key] = value
        return copied
    parts = [*item]
    parts[_in(item, key)] = value
    return type(item)(*parts) if hasattr(item, "_fields") else type(item)(parts)


def _padding(pad: Any, dim: Any) -> Padding:
    values = pad if isinstance(pad, Mapping) else {None: pad}
    if not values or not all(isinstance(v, (int, float)) for v in values.values()):
        raise ConfigTypeError.of(
            "pad", f"takes numbers by key, such as {{ids: 0}}: {pad!r}"
        )
    if type(dim) is not int:
        raise ConfigTypeError.of("dim", f"must be an int: {dim!r}")
    return Padding(dict(values), dim)


def _check(sizes: Any, num: Any, multiple_of: Any) -> None:
    for name, value in (("num", num), ("multiple_of", multiple_of)):
        if type(value) is not int or value < 1:
            raise ConfigError.of(name, f"must be an int of at least 1: {value!r}")
    listed = isinstance(sizes, (list, tuple)) and sizes
    if not (listed and all(type(size) is int and size > 0 for size in sizes)) and (
        not isinstance(sizes, str) or sizes not in WAYS
    ):
        raise ConfigError.of(
            "sizes", f"is a list of lengths or one of {', '.join(WAYS)}: {sizes!r}"
        )


def _lengths(loader: DataLoader[Any], padding: Padding) -> Tensor:
    """Lengths of the samples, int64: all that the data set knows, else of those that
    are read; none of an iterable one."""
    dataset: Any = loader.dataset
    if isinstance(dataset, IterableDataset):
        return torch.zeros(0, dtype=torch.int64)
    known = column(dataset, "lengths")
    if known is not None and len(known) == len(dataset):
        return known.to(torch.int64)
    count = min(_OBSERVED, len(dataset))
    seeded = SeededDataset(dataset, seed=0)
    found: list[int] = []
    own = loader.collate_fn is not default_collate  # whose batches have other keys
    for at in range(count):
        sample = seeded[SampleKey(0, at * len(dataset) // count)]
        item = loader.collate_fn([sample]) if own else sample
        if length := padding.length(item, batched=own):
            found.append(length)
    return torch.tensor(found, dtype=torch.int64)


def _quantiles(lengths: Tensor, num: int, multiple_of: int, batch: int) -> list[int]:
    """Sizes that get equally many batches of `batch` samples that meet by chance.

    All of a batch are at most as long as the quantile q of the lengths with the
    probability q to the power of `batch`.
    """
    count = len(lengths)
    if count == 0:
        raise ConfigError.of(
            "sizes",
            "cannot be chosen without lengths: give sizes as a list, or the data set "
            "`lengths`",
        )
    shares = ((part / num) ** (1 / batch) for part in range(1, num + 1))
    found = lengths.sort().values[[math.ceil(share * count) - 1 for share in shares]]
    return sorted({_rounded(size, multiple_of) for size in found.tolist()})


def _rounded(length: int, multiple: int) -> int:
    return -(-max(length, 1) // multiple) * multiple
