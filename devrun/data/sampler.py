"""Batch samplers whose order is a function of (seed, epoch), readable from anywhere."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any, NamedTuple

import torch
from torch.utils.data import Sampler

from devrun.data import rng

_ORDER, _CUSTOM = 1, 2  # salts: the order shares no stream with the samples


class SampleKey(NamedTuple):
    """What a keyed sampler asks for: which sample, in which epoch.

    The epoch travels with the key because persistent workers hold a copy of the
    data set that no later `set_epoch` reaches.
    """

    epoch: int
    index: Any


class EpochBatchSampler(Sampler[Any]):
    """Batches of indices in an order computed from (seed, epoch), from any position.

    The order of an epoch is one permutation (or 0, 1, 2, ... without `shuffle`). A
    global batch is `batch_size * world_size` consecutive entries of it, of which
    each rank takes its slice: the same global batch gives the same samples per
    update whatever the number of processes. With `pad` (training) the last, short
    global batch is filled up from the start of the order until it divides evenly;
    without it (evaluation) rank r takes entries r, r + world_size, ... and no sample
    comes twice.
    """

    def __init__(
        self,
        num_samples: int,
        batch_size: int,
        *,
        shuffle: bool,
        seed: int,
        drop_last: bool = False,
        rank: int = 0,
        world_size: int = 1,
        pad: bool = True,
    ) -> None:
        self.num_samples, self.batch_size = num_samples, batch_size
        self.shuffle, self.seed, self.drop_last = shuffle, seed, drop_last
        self.rank, self.world_size = rank, world_size
        self.pad = pad
        self.epoch = 0
        self._start = 0

    @property
    def global_batch_size(self) -> int:
        """Samples of one batch, over all ranks."""
        return self.batch_size * self.world_size

    def set_epoch(self, epoch: int) -> None:
        """The next iteration is that of `epoch`."""
        self.epoch = epoch

    def start_at(self, batch: int) -> None:
        """The next iteration, and only that, begins at `batch` of its epoch."""
        self._start = batch

    def __len__(self) -> int:
        samples, size = self.num_samples, self.global_batch_size
        if not self.pad:
            share = range(self.rank, samples, self.world_size)
            samples, size = len(share), self.batch_size
        return samples // size if self.drop_last else -(-samples // size)

    def __iter__(self) -> Iterator[list[Any]]:
        return self._batches(self.epoch, self._start)

    def order(self, epoch: int) -> torch.Tensor:
        """The whole epoch's order over all ranks, int64 of shape (num_samples,)."""
        if not self.shuffle:
            return torch.arange(self.num_samples)
        generator = torch.Generator()
        generator.manual_seed(rng.mix(self.seed, epoch, 0, _ORDER))
        return torch.randperm(self.num_samples, generator=generator)

    def _batches(self, epoch: int, start: int) -> Iterator[list[Any]]:
        self._start = 0  # here: torch asks for an iterator twice and reads one
        order = self.order(epoch)
        if not self.pad:
            order = order[self.rank :: self.world_size]
        for batch in range(start, len(self)):
            yield [SampleKey(epoch, i) for i in self._slice(order, batch)]

    def _slice(self, order: torch.Tensor, batch: int) -> list[int]:
        size = self.batch_size
        if not self.pad:
            return order[batch * size : (batch + 1) * size].tolist()
        begin = batch * self.global_batch_size
        if begin + self.global_batch_size <= self.num_samples:
            begin += self.rank * size
            return order[begin : begin + size].tolist()
        share = -(-(self.num_samples - begin) // self.world_size)
        begin += self.rank * share
        # modulo: filled up from the start, several times round if there are few
        return [int(order[i % len(order)]) for i in range(begin, begin + share)]


class KeyedBatchSampler(Sampler[Any]):
    """Somebody's own batch sampler, with keys for the per-sample randomness.

    A restart asks it for the batches before the position and throws away the
    indices, not the data. What it draws from the global streams comes from (seed,
    epoch) instead, unless it has a `set_epoch` of its own to go by; a `generator` of
    its own starts each epoch from (the seed that it had, epoch).
    """

    def __init__(self, batch_sampler: Iterable[Any], *, seed: int) -> None:
        self.batch_sampler, self.seed = batch_sampler, seed
        found = (getattr(owner, "generator", None) for owner in self._owners())
        self._generators = [
            (generator, generator.initial_seed())
            for generator in found
            if isinstance(generator, torch.Generator)
        ]
        self.epoch = 0
        self._start = 0

    @property
    def batch_size(self) -> int | None:
        return getattr(self.batch_sampler, "batch_size", None)

    def set_epoch(self, epoch: int) -> None:
        """The next iteration is that of `epoch`."""
        self.epoch = epoch
        for owner in self._owners():
            if hasattr(owner, "set_epoch"):
                owner.set_epoch(epoch)

    def start_at(self, batch: int) -> None:
        """The next iteration, and only that, begins at `batch` of its epoch."""
        self._start = batch

    def __len__(self) -> int:
        return len(self.batch_sampler)  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[list[Any]]:
        batches: Iterable[Any] = self.batch_sampler
        if not any(hasattr(owner, "set_epoch") for owner in self._owners()):
            for generator, seed in self._generators:
                generator.manual_seed(rng.mix(seed, self.epoch, 0, _CUSTOM))
            batches = _seeded(batches, rng.mix(self.seed, self.epoch, 0, _CUSTOM))
        return self._keyed(batches, self.epoch, self._start)

    def _owners(self) -> tuple[Any, ...]:
        return self.batch_sampler, getattr(self.batch_sampler, "sampler", None)

    def _keyed(
        self, batches: Iterable[Any], epoch: int, start: int
    ) -> Iterator[list[SampleKey]]:
        self._start = 0
        for batch in islice(batches, start, None):
            yield [SampleKey(epoch, index) for index in batch]


def _seeded(batches: Iterable[Any], seed: int) -> Iterator[Any]:
    """`batches`, drawing from streams of their own instead of the global ones."""
    with rng.preserved():
        rng.reseed(seed)
        iterator = iter(batches)
        own = rng.capture()
    while True:
        with rng.preserved():
            rng.restore(own)
            try:
                batch = next(iterator)
            except StopIteration:
                return
            own = rng.capture()
        yield batch
