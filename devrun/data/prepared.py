"""`PreparedLoader`: what a run iterates, one item per optimizer update.

It is the one object between the user's data and the loop::

    DataLoader, or the `data` section     what the user gives
    LoaderSpec                            its data, order and workers, as a value
    PreparedLoader                        what an adapter makes of it, and a run reads

It iterates a DataLoader of torch's over an `EpochBatchSampler`, a
`SeededDataset` and a `SeededCollate`; then it accumulates, transfers, looks ahead and
limits. Anything but a plain DataLoader is iterated as it is in its place. What a run
may ask of it is `devrun.run.Loader`; an `IterLoader` around it starts its next epoch by
itself.
"""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from time import perf_counter
from typing import Any

import torch
from torch.utils.data import DataLoader

from devrun.blame import cause_of
from devrun.data import rng, workers
from devrun.data.sampler import EpochBatchSampler, KeyedBatchSampler
from devrun.data.seeded import SampleError, SeededDataset
from devrun.data.spec import LoaderSpec
from devrun.data.streaming import StreamPosition
from devrun.data.timing import Clock
from devrun.errors import ConfigError, DataError, DevrunError, HangError
from devrun.step import MicroBatches

_LOADER = 4  # salt


class PreparedLoader:
    """The batches of `loader`, every item one update's, startable at any update.

    Args:
        loader: a `LoaderSpec`, which starts anywhere by itself, or any iterable of
            batches, of which those before the start are read and dropped.
        accumulate: batches of one update; above 1 the items are `MicroBatches`
            lists, the last of an epoch possibly shorter.
        drop_short: leave that shorter one out.
        transfer: called on every batch, such as to copy it to a device. With
            `lookahead` n it runs n items ahead of the one that is handed out.
        receive: called on an item just before it is handed out, such as to wait for
            the copy that `transfer` began.
        in_step: wraps the iterator of the items, for processes that must do equally
            many steps: one with fewer items idles until the others have read theirs.
    """

    def __init__(
        self,
        loader: Any,
        *,
        accumulate: int = 1,
        drop_short: bool = False,
        transfer: Callable[[Any], Any] | None = None,
        receive: Callable[[Any], Any] | None = None,
        lookahead: int = 0,
        in_step: Callable[[Iterator[Any]], Iterator[Any]] | None = None,
    ) -> None:
        if accumulate < 1:
            raise ConfigError(f"accumulate must be at least 1, got {accumulate}")
        self.accumulate = accumulate
        self.dataset = getattr(loader, "dataset", None)
        """The user's data set; None if the loader does not tell."""
        self.clock = Clock()
        """Told how long batches took; a run gives its own."""
        self.loader = loader
        """What reads the batches: the engine, or the user's own."""
        self._spec = loader if isinstance(loader, LoaderSpec) else None
        if self._spec is not None:
            given = self._spec.arguments()
            self._generator = torch.Generator()
            self._seed_workers(0)
            self.loader = DataLoader(**given, generator=self._generator)
        else:
            names = ("batch_sampler", "sampler", "dataset")
            given = {name: getattr(loader, name, None) for name in names}
        own = given.get("batch_sampler")
        known = isinstance(own, (EpochBatchSampler, KeyedBatchSampler))
        self.sampler = own if known else given.get("sampler")
        """What decides the order; it has `set_epoch` if the order has epochs."""
        inner: Any = getattr(own, "sampler", None)
        self._told: Any = (own, self.sampler, inner, given["dataset"])
        self._order: Any = own if known else self.loader
        """What knows the number of batches, and perhaps how to start at one."""
        self._drop_short, self._lookahead = drop_short, lookahead
        self._moves = transfer, receive
        self.in_step = in_step
        """As it was given; None where no process waits for another."""
        self._limit: int | None = None
        self._skip = 0
        self._iterator: Any = None
        self._death: str | None = None
        self.stream = None if self._spec is None else StreamPosition.of(self.loader)
        """Where an iterable data set stands that can tell; else None."""

    def __len__(self) -> int:
        """Updates per epoch."""
        updates = self._updates()
        return updates if self._limit is None else min(updates, self._limit)

    @property
    def batch_size(self) -> int | None:
        """Samples of one batch of this process; None if the loader does not say."""
        size = getattr(self._order, "batch_size", None)
        return None if size is None else int(size)

    @property
    def batch_sampler(self) -> Any:
        """Of the loader; None where it has none."""
        return self._told[0]

    @property
    def data_share(self) -> tuple[int, int]:
        """Which part of the samples this is, of how many."""
        spec = self._spec
        return (0, 1) if spec is None else (spec.rank, spec.world_size)

    @property
    def samples_per_update(self) -> int | None:
        """Samples of one update over all processes; None if it is not known.

        A position is saved as updates times this, in global samples.
        """
        if isinstance(self._order, EpochBatchSampler):
            return self._order.global_batch_size * self.accumulate
        size: int | None = getattr(self.loader, "samples_per_update", None)
        return size

    def limited(self, count: int) -> PreparedLoader:
        """The same loader, of which an epoch has at most `count` updates."""
        limited = copy.copy(self)
        limited._limit = count
        return limited

    @property
    def shortened(self) -> bool:
        """Whether a limit leaves some of an epoch out; True where it may."""
        if self._limit is None:
            return False
        try:
            return self._updates() > self._limit
        except TypeError:  # an iterable that does not know
            return True

    def set_epoch(self, epoch: int) -> None:
        """The next iteration is that of `epoch`, whichever came before."""
        self._seed_workers(epoch)
        own = callable(getattr(self.loader, "set_epoch", None))
        owners = (self.loader,) if own else self._told
        for owner in {id(owner): owner for owner in owners}.values():
            # a SeededDataset hears of the epoch with its keys
            if not isinstance(owner, SeededDataset) and hasattr(owner, "set_epoch"):
                owner.set_epoch(epoch)

    def start_at(self, update: int) -> None:
        """The next iteration, and only that, begins at `update` of its epoch.

        Raises:
            ConfigError: the epoch has fewer updates.
        """
        skip = update * self.accumulate
        try:
            updates, batches = self._updates(), len(self._order)
        except TypeError:  # an iterable that does not know
            self._skip = skip
            return
        if not 0 <= update <= updates:
            raise ConfigError(
                f"cannot start at update {update} of an epoch of {updates}; "
                "were the data set or the batch size changed since the save?"
            )
        self._skip = min(skip, batches)  # the last update may have fewer batches

    def __iter__(self) -> Iterator[Any]:
        start = skip = self._skip
        self._skip = 0
        left = None if self._limit is None else self._limit * self.accumulate - skip
        if left is not None and left <= 0:
            return iter(())
        if skip and hasattr(self._order, "start_at"):
            self._order.start_at(skip)
            skip = 0
        began = perf_counter()
        iterator = self._opened(skip)
        self.clock.data += perf_counter() - began
        items: Iterator[Any] = islice(self._read(iterator), left)
        if self.stream is not None:
            items = self.stream.noted(items, start)
        if self.accumulate > 1:
            items = self._grouped(items)
        if self._lookahead:
            items = ahead(items, self._lookahead)
        if self._moves[1] is not None:
            items = map(self._moves[1], items)
        if self.stream is not None:
            items = self.stream.handed_out(items, self.accumulate, start)
        return items if self.in_step is None else self.in_step(items)

    def close(self) -> None:
        """End the workers of an epoch broken off, and those that outlive epochs."""
        self._abandon(self._iterator)
        self._abandon(getattr(self.loader, "_iterator", None))

    def explain(self, error: BaseException) -> DevrunError | None:
        """What a dead or silent worker means, if that is what `error` tells of.

        torch reports a death wherever the main process happens to be, so the error
        may come out of a training step as well as out of this loader.
        """
        # a worker that dies while it hands a batch over breaks the connection
        cut = isinstance(error, (ConnectionError, EOFError))
        if not (cut or isinstance(error, RuntimeError)):
            return None
        text = str(error)
        if text.startswith("DataLoader timed out"):
            pids = ", ".join(map(str, workers.pids(self._iterator)))
            return HangError(
                f"no batch within {self.loader.timeout:g} s from the loader's workers "
                f"(pids {pids}); a sample hangs, or `timeout` is too short"
            )
        if (cut or text.startswith("DataLoader worker")) and (
            dead := workers.describe_dead(self._iterator, 0.5 if cut else 0.0)
            or self._death
        ):
            memory = "SIGKILL" in dead or "SIGBUS" in dead
            hint = "; is memory or /dev/shm short?" if memory else ""
            return DataError(f"data loading stopped: {dead}{hint}")
        return None

    def _updates(self) -> int:
        rest = 0 if self._drop_short else self.accumulate - 1
        return (len(self._order) + rest) // self.accumulate

    def _seed_workers(self, epoch: int) -> None:
        """What an iterable data set, or a worker_init_fn, draws."""
        if self._spec is not None:
            seed = rng.mix(self._spec.seed, epoch, 0, _LOADER)
            self._generator.manual_seed(seed)

    def _opened(self, skip: int) -> Any:
        """An iterator of the loader past its first `skip` batches.

        Opened before the first batch is asked for: what this draws from the global
        streams is drawn when a resumed run puts them back.
        """
        if self.stream is not None:
            skip = self.stream.opened(skip)
        if self._spec is None:
            iterator = self._guarded(iter, self.loader)
        else:
            with workers.deferred():
                iterator = self._guarded(iter, self.loader)
            workers.watch(iterator)
        self._iterator = iterator
        for _ in range(skip):
            self._guarded(next, iterator, None)
        return iterator

    def _read(self, iterator: Any) -> Iterator[Any]:
        """The batches of `iterator`; the loader's failures as one line each."""
        clock = self.clock
        transfer = None if self.accumulate > 1 else self._moves[0]
        try:
            while True:
                began = perf_counter()
                try:
                    batch = next(iterator)
                except StopIteration:
                    return
                except Exception as error:
                    failure = self._as_data_error(error)
                    self._abandon(iterator)
                    raise failure from error
                there = perf_counter()
                clock.data += there - began
                if transfer is not None:
                    batch = transfer(batch)
                    clock.copy += perf_counter() - there
                yield batch
        except GeneratorExit:
            # left in the middle, perhaps by a death that torch reported elsewhere
            self._death = workers.describe_dead(iterator)
            raise
        finally:
            if self._iterator is iterator:
                self._iterator = None  # lets the workers of a broken-off epoch go

    def _abandon(self, iterator: Any) -> None:
        """End the workers while the error is fresh: garbage collection, which breaks
        their queues before it closes them, would take seconds over each."""
        if self._spec is None:
            return
        workers.stop(iterator)
        if getattr(self.loader, "_iterator", None) is iterator:
            self.loader._iterator = None

    def _guarded(self, call: Callable[..., Any], *args: Any) -> Any:
        try:
            return call(*args)
        except Exception as error:
            raise self._as_data_error(error) from error

    def _as_data_error(self, error: Exception) -> DevrunError:
        if (explained := self.explain(error)) is not None:
            return explained
        if isinstance(error, SampleError):
            # from a worker the text is a traceback that ends with the message
            return DataError(str(error).rpartition("SampleError: ")[2].strip())
        if isinstance(error, DevrunError):
            return error
        return DataError(f"{cause_of(error)}; data loading failed")

    def _grouped(self, batches: Iterable[Any]) -> Iterator[MicroBatches]:
        batches = iter(batches)
        while group := MicroBatches(islice(batches, self.accumulate)):
            if self._drop_short and len(group) < self.accumulate:
                return
            if self._moves[0] is not None:
                began = perf_counter()
                group[:] = map(self._moves[0], group)
                self.clock.copy += perf_counter() - began
            yield group


def ahead(items: Iterable[Any], count: int) -> Iterator[Any]:
    """`items`, each handed out when the `count` after it have been fetched."""
    held: deque[Any] = deque()
    for item in items:
        held.append(item)
        if len(held) > count:
            yield held.popleft()
    yield from held
