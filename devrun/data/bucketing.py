"""Bucketing: a few batch shapes, chosen from the data, instead of one for each length.

Whatever compiles or captures per shape (an HPU graph, a CUDA graph, torch.compile,
an IPU executable) then does so a few times, at the price of some padding.
"""

from __future__ import annotations

import copy
import logging
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import (
    DataLoader,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    Subset,
    default_collate,
)

from devrun.construct import call, where
from devrun.data.padding import Axis, BucketCollate
from devrun.data.sampler import EpochBatchSampler, SampleKey
from devrun.data.seeded import SampleError, SeededDataset
from devrun.data.spec import ConfiguredLoader, Extras, error_policy, extras_of
from devrun.errors import ConfigError, ConfigTypeError, DataError

MOST_BATCHES = 2000
"""Laid out in advance, to choose sizes and to tell the waste."""

POLICIES = ("error", "truncate", "grow")
WAYS = ("quantiles", "powers", "longest")

logger = logging.getLogger("devrun")


@dataclass(frozen=True)
class Buckets:
    """The sizes that batches are padded to, ascending; without any, the longest
    sample of each batch decides."""

    sizes: tuple[int, ...]
    multiple_of: int = 1
    max_length: int | None = None
    too_long: str = "error"

    @property
    def largest(self) -> int | None:
        return self.sizes[-1] if self.sizes else self.max_length

    def fit(self, length: int) -> int:
        """The size for a batch whose longest sample has `length`.

        Raises:
            DataError: it is too long, and `too_long` is "error".
        """
        largest = self.largest
        if largest is None:
            return _rounded(length, self.multiple_of)
        if length <= largest:
            if self.sizes:
                return self.sizes[bisect_left(self.sizes, length)]
            return min(_rounded(length, self.multiple_of), largest)
        if self.too_long == "truncate":
            return largest
        if self.too_long == "grow":  # no state: workers and restarts agree
            while largest < length:
                largest *= 2
            return largest
        raise DataError(
            f"a sample of length {length} is above the largest bucket, {largest}; "
            "too_long: truncate cuts it, grow doubles the size, or give larger sizes"
        )

    def __str__(self) -> str:
        if not self.sizes:
            return "the longest sample of each batch"
        sizes = ", ".join(map(str, self.sizes))
        return f"{len(self.sizes)} size{'s' * (len(self.sizes) > 1)} ({sizes})"


def bucketed(
    loader: DataLoader[Any],
    *,
    pad: Mapping[Any, float] | float,
    dim: Mapping[Any, int] | int = 0,
    mask: Mapping[Any, str] | None = None,
    sizes: str | Sequence[int] = "quantiles",
    num: int = 8,
    multiple_of: int = 1,
    max_length: int | None = None,
    too_long: str = "error",
    observe: int = 1000,
) -> DataLoader[Any]:
    """A copy of `loader` whose batches are padded to a small set of sizes.

    Which samples make a batch does not change, and neither do workers or sampler, so
    it can be sharded and resumed like the original. The sizes and the padding to
    expect are logged once. Two axes that vary apart (source and target of a
    translation) take two calls.

    Args:
        pad: key -> value to pad with, for everything that varies (`Axis` has the
            form of a key); a number alone if a sample is one tensor.
        dim: of a sample's tensor, the one that varies; for all or by key.
        mask: key -> name of the mask to add for it.
        sizes: `quantiles`, at most `num` that get equally many batches; `powers` of
            two, all that are needed; a list; or `longest`: no buckets, each batch is
            padded to its longest sample.
        multiple_of: chosen sizes are rounded up to one.
        max_length: no size is above it.
        too_long: what becomes of a sample longer than the largest size: an `error`,
            `truncate` cuts it, `grow` doubles the size until it fits.
        observe: samples, evenly spaced, that are read to learn their lengths, unless
            the data set has them in `lengths`, one whole number each.

    Raises:
        ConfigError: a value out of range, a key that the samples do not have, or
            samples that are too long.
    """
    if not isinstance(loader, DataLoader):
        raise ConfigTypeError(f"buckets take a DataLoader: {type(loader).__name__}")
    _check(sizes, num, multiple_of, max_length, too_long, observe)
    axis = _axis(pad, dim, mask)
    padded = copy.copy(loader)
    vars(padded)["_iterator"] = None  # persistent workers have the old collate function
    extras = extras_of(loader)
    lengths = _observed(loader, axis, None if extras.group_by_length else observe)
    if extras.group_by_length and extras.lengths is None:  # those of the first axis
        extras = replace(extras, lengths=lengths)
        padded.extras = extras
    batches = _batches(padded, lengths, extras)
    if not isinstance(sizes, str):
        chosen = sorted(set(sizes))
    elif sizes == "longest":
        chosen = []
    else:
        chosen = _chosen(sizes, batches, lengths, num, multiple_of, max_length)
    buckets = Buckets(tuple(chosen), multiple_of, max_length, too_long)
    _refuse_too_long(buckets, lengths)
    padded.collate_fn = BucketCollate(loader.collate_fn, axis, buckets)
    logger.info("%s", _announcement(loader.dataset, buckets, batches))
    return padded


def with_buckets(loader: ConfiguredLoader, specs: Any) -> DataLoader[Any]:
    """`loader` with the `buckets` of a config: the arguments of `bucketed`, or several.

    Raises:
        ConfigError: wrong arguments, or grouping without buckets or without shuffling.
    """
    if isinstance(specs, Mapping):
        specs = [specs]
    if loader.extras.group_by_length:
        if not specs:
            raise ConfigError.of(
                "group_by_length", "needs buckets: they say what is long"
            )
        if not isinstance(loader.sampler, RandomSampler):
            raise ConfigError.of(
                "group_by_length", "needs shuffle: true and no sampler"
            )
    padded: DataLoader[Any] = loader
    for at, spec in enumerate(specs or ()):
        if not isinstance(spec, Mapping):
            raise ConfigTypeError(
                f"buckets are a dict or several: {spec!r}",
                place=where(specs, at),
                key="buckets",
            )
        padded = call(bucketed, {"loader": padded, **spec}, spec)
    return padded


def _axis(pad: Any, dim: Any, mask: Any) -> Axis:
    values = (
        {str(k): v for k, v in pad.items()} if isinstance(pad, Mapping) else {"": pad}
    )
    if not values or not all(isinstance(v, (int, float)) for v in values.values()):
        raise ConfigTypeError.of(
            "pad", f"takes numbers by key, such as {{ids: 0}}: {pad!r}"
        )
    given = _by_key(dim) if isinstance(dim, Mapping) else {}
    names = _by_key(mask or {})
    for what, keys in (("dim", given), ("mask", names)):
        for key in keys:
            if key not in values:
                raise ConfigError.of(what, f"has {key!r}, which pad has not")
    default = 0 if isinstance(dim, Mapping) else dim
    return Axis(values, {key: given.get(key, default) for key in values}, names)


def _by_key(values: Mapping[Any, Any]) -> dict[str, Any]:
    return {str(key): value for key, value in values.items()}  # YAML has numbers too


def _check(
    sizes: Any, num: Any, multiple_of: Any, max_length: Any, too_long: Any, observe: Any
) -> None:
    least = {"num": (num, 1), "multiple_of": (multiple_of, 1), "observe": (observe, 0)}
    if max_length is not None:
        least["max_length"] = (max_length, 1)
    if isinstance(sizes, Sequence) and not isinstance(sizes, str):
        least.update((f"sizes[{at}]", (size, 1)) for at, size in enumerate(sizes))
    for name, (value, low) in least.items():
        if type(value) is not int or value < low:
            raise ConfigError(
                f"{name} must be an int of at least {low}: {value!r}",
                key=name.partition("[")[0],
            )
    if not sizes or not (isinstance(sizes, (list, tuple)) or sizes in WAYS):
        raise ConfigError.of(
            "sizes", f"is a list or one of {', '.join(WAYS)}: {sizes!r}"
        )
    if too_long not in POLICIES:
        raise ConfigError.of(
            "too_long", f"is one of {', '.join(POLICIES)}: {too_long!r}"
        )


def _observed(loader: DataLoader[Any], axis: Axis, most: int | None) -> Tensor:
    """Lengths of the samples, int64: all that the data set knows, else of `most`
    samples that are read; none of an iterable one."""
    dataset: Any = loader.dataset
    if isinstance(dataset, IterableDataset):
        return torch.zeros(0, dtype=torch.int64)
    known = _known(dataset)
    if known is not None:
        return known
    count = len(dataset) if most is None else min(most, len(dataset))
    policy = error_policy(extras_of(loader), dataset)
    skipping = suppress(SampleError) if policy == "skip" else nullcontext()
    seeded = SeededDataset(dataset, seed=0)
    batched = loader.batch_sampler is None
    found: list[int] = []
    for at in range(count):
        with skipping:
            sample = seeded[SampleKey(0, at * len(dataset) // count)]
            if not found and loader.collate_fn is not default_collate:
                axis = axis.within(sample)
            found.append(axis.length(sample, batched=batched))
    return torch.tensor([length for length in found if length], dtype=torch.int64)


def _known(dataset: Any) -> Tensor | None:
    if type(dataset) is Subset:
        whole = _known(dataset.dataset)
        return None if whole is None else whole[torch.as_tensor(dataset.indices)]
    lengths = getattr(dataset, "lengths", None)
    if not isinstance(lengths, (Tensor, Sequence)) or len(lengths) != len(dataset):
        return None
    found = torch.as_tensor(lengths)
    whole_numbers = not (found.is_floating_point() or found.is_complex())
    return found.to(torch.int64) if found.dim() == 1 and whole_numbers else None


def _batches(loader: DataLoader[Any], lengths: Tensor, extras: Extras) -> list[Tensor]:
    """`lengths` as batches of the kind to expect: in turn, at random, or grouped."""
    if len(lengths) == 0:
        return []
    size = loader.batch_size or getattr(loader.batch_sampler, "batch_size", None) or 1
    sampler = EpochBatchSampler(
        len(lengths),
        size,
        shuffle=not isinstance(loader.sampler, SequentialSampler),
        seed=0,
        drop_last=loader.drop_last,
        lengths=extras.lengths,
    )
    order = sampler.order(0)[: len(sampler) * size]
    return [part for part in lengths[order].split(size)[:MOST_BATCHES] if len(part)]


def _chosen(
    way: str,
    batches: list[Tensor],
    lengths: Tensor,
    num: int,
    multiple_of: int,
    max_length: int | None,
) -> list[int]:
    """Sizes for batches like these, of which the last holds the longest sample."""
    if len(lengths) == 0:
        raise ConfigError(
            f"no lengths to choose {way} from: give sizes as a list, or the data set "
            "`lengths`",
            key="sizes",
        )
    longest = torch.stack([part.max() for part in batches or [lengths]]).sort().values
    most = int(lengths.max())
    if way == "powers":
        first, last = (
            max(size - 1, 0).bit_length() for size in (int(longest[0]), most)
        )
        found = [2**power for power in range(first, last + 1)]
    else:
        ends = -(-torch.arange(1, num) * len(longest) // num) - 1  # rounded up
        found = [*longest[ends].tolist(), most]
    sizes = {_rounded(size, multiple_of) for size in found}
    return sorted(
        {size if max_length is None else min(size, max_length) for size in sizes}
    )


def _refuse_too_long(buckets: Buckets, lengths: Tensor) -> None:
    largest = buckets.largest
    if largest is None or buckets.too_long != "error":
        return
    over = int((lengths > largest).sum())
    if over:
        raise ConfigError(
            f"{over} of {len(lengths)} samples are longer than the largest bucket, "
            f"{largest} (one has {int(lengths.max())}); too_long: truncate cuts them, "
            "grow doubles the size, or give larger sizes",
            key="sizes",
        )


def _announcement(dataset: Any, buckets: Buckets, batches: list[Tensor]) -> str:
    text = f"batches of {type(dataset).__name__} are padded to {buckets}"
    return f"{text}: {_forecast(batches, buckets)}" if batches else text


def _forecast(batches: Sequence[Tensor], buckets: Buckets) -> str:
    """Share of padding and number of shapes in `batches`, the lengths of their samples.

    A shape is the number of samples and the size they are padded to.
    """
    shapes: set[tuple[int, int]] = set()
    real = total = 0
    for batch in batches:
        size = buckets.fit(int(batch.max()))
        shapes.add((len(batch), size))
        real += int(batch.clamp(max=size).sum())
        total += len(batch) * size
    share = 100 * (1 - real / max(total, 1))
    return f"{share:.1f} % padding, {len(shapes)} shape{'s' * (len(shapes) > 1)}"


def _rounded(length: int, multiple: int) -> int:
    return -(-max(length, 1) // multiple) * multiple
