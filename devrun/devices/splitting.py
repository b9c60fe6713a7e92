"""`Splitter`: micro-batches that fit into memory, and the fastest of those.

One update keeps its samples: they are divided into more and smaller micro-batches
whose gradients are added up, weighted by their samples. The result is that of the
whole batch but for rounding, for models whose loss is a mean over samples; statistics
that a model takes of its batch (BatchNorm) are then those of smaller batches.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Mapping, Sequence
from time import perf_counter, process_time
from typing import Any, TypeVar

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from devrun.data.batch import batch_size_of
from devrun.devices.snapshot import Snapshot
from devrun.devices.turns import Turns, told
from devrun.dist import all_reduce_max, get_dist_info
from devrun.errors import (
    DeviceMemoryError,
    UnsupportedFeatureError,
    is_out_of_memory,
)
from devrun.models.compiled import is_compiled
from devrun.step import MicroBatches, UpdatePolicy
from devrun.tensors import INSIDE, replaced, tensors_in

logger = logging.getLogger("devrun")

MOST_UNLIKE = 12
"""Updates of another number of samples, after which times are compared no more."""

T = TypeVar("T")


class Pieces(MicroBatches):
    """Micro-batches that are divided already."""


class Splitter:
    """Divides the batches of an update, and halves the pieces when memory runs out.

    A failed attempt leaves nothing behind: gradients are cleared, and the random
    streams and the buffers of the model are put back, so that each sample counts once
    and draws the numbers it would have drawn. Once the largest size that fits is known,
    updates at half of it are timed against it, and at half of that, for as long as
    that is faster; see `measures`.

    Args:
        size: samples of a micro-batch at most; None for `auto`, which begins with the
            whole batch.
        adapter: gives and takes back the random state of the device, and empties its
            cache.
    """

    def __init__(self, size: int | None, adapter: Any) -> None:
        self.size = size
        """The best known so far; None for whole batches."""
        self.fixed = size is not None
        self._adapter = adapter
        self._together = get_dist_info()[1] > 1
        self.measures = not (
            self.fixed
            or self._together  # each would have times of its own
            or adapter.options.deterministic
            or adapter.flops_obstacle is not None  # operations collect to graphs
        )
        """Whether sizes are still to be compared by time."""
        self._measured = False
        self._turns: Turns[int] | None = None
        self._times: dict[int, float] = {}
        self._samples: list[int] = []
        self._unlike = 0

    def run(
        self,
        parts: Sequence[Any],
        attempt: Callable[[Pieces], T],
        model: nn.Module,
        clear: Callable[[], None],
    ) -> T:
        """What `attempt` gives for the parts, divided as finely as it takes.

        Raises:
            DeviceMemoryError: single samples do not fit, or the size is fixed.
        """
        while True:
            size = self.size if self._turns is None else self._turns.way
            divided = [split(part, size) for part in parts]
            pieces = Pieces(itertools.chain.from_iterable(divided))
            kept = None if self.fixed else Snapshot(model.buffers(), self._adapter)
            began = self._now()
            result, failure = _tried(attempt, pieces)
            # with a fixed size the others are told by the end of this process
            together = self._together and not self.fixed
            if together and all_reduce_max(float(failure is not None)) > 0:
                failure = failure or "another rank ran out of memory"
            if failure is None:
                if self.measures:
                    self._compare(parts, model, self._now() - began)
                return result  # type: ignore[return-value]
            clear()
            if kept is not None:
                kept.put_back()
            self._adapter.empty_cache()
            self._halve(pieces, failure)

    def state_dict(self) -> dict[str, Any]:
        """The size that has been found, and whether that was by time."""
        if self.fixed:
            return {}
        found: dict[str, Any] = {} if self.size is None else {"size": self.size}
        return {**found, "measured": True} if self._measured else found

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Begin with the size that another run found, and keep what it measured."""
        measured = bool(state.get("measured"))
        if self.fixed or (self._measured and not measured):  # the latter: rolled back
            return
        if state.get("size"):
            self.size = int(state["size"])
        self._turns = None
        self._measured = measured
        self.measures = self.measures and not measured

    def _now(self) -> float:
        """Of the clock that fits the device, in seconds; 0 where nothing is timed."""
        if not self.measures:
            return 0.0
        if self._adapter.host_shared:  # other programs disturb this one less
            return process_time()
        self._adapter.synchronize()
        return perf_counter()

    def _compare(self, parts: Sequence[Any], model: nn.Module, seconds: float) -> None:
        """Add the time of an update, and see whether another size is the better one."""
        samples = [batch_size_of(part) for part in parts]
        if self._turns is None:  # the first update pays for what is made once
            self._samples, self._times, self._unlike = samples, {}, 0
            self.measures = not any(map(_minds_size, model.modules()))
            if self.measures:
                self._against_half(min(self.size or max(samples), max(samples)))
            return
        if samples != self._samples:
            self._unlike += 1
            if self._unlike > MOST_UNLIKE:
                self._decide("batches of different sizes are not compared")
            return
        chosen = self._turns.add(seconds)
        if chosen is None:
            return
        for size, least in self._turns.times.items():
            self._times[size] = min(least, self._times.get(size, least))
        if chosen == self._turns.ways[0]:
            self._decide()
        else:
            self.size = chosen
            self._against_half(chosen)

    def _against_half(self, size: int) -> None:
        if size > 1:
            self._turns = Turns((size, (size + 1) // 2))
        else:
            self._decide()

    def _decide(self, why: str = "") -> None:
        """Measure no more, and keep the best size so far."""
        kind = "of processor time, " * self._adapter.host_shared
        if self._times:
            times = told(self._times, "with ")
            why = why or f"forward and backward of an update took, {kind}{times}"
        self.measures, self._measured, self._turns = False, True, None
        logger.info(
            "micro_batch: auto keeps %s; %s",
            "whole batches" if self.size is None else self.size,
            why or "there is no smaller one",
        )

    def _halve(self, pieces: Sequence[Any], failure: str) -> None:
        largest = max(map(batch_size_of, pieces))
        if not self.fixed:  # all ranks do as many pieces
            largest = int(all_reduce_max(float(largest)))
        if largest <= 1 or self.fixed:
            raise DeviceMemoryError(
                f"out of memory with micro-batches of {largest} samples ({failure}): "
                "use a smaller model or input, precision bf16, or micro_batch: auto"
            )
        self.size, self._turns = (largest + 1) // 2, None
        logger.warning(
            "out of memory with micro-batches of %d samples: %d from here on, and more "
            "of them; an update keeps its %d samples (%s)",
            largest,
            self.size,
            sum(map(batch_size_of, pieces)),
            failure,
        )


def splitter_for(policy: UpdatePolicy, adapter: Any) -> Splitter | None:
    """What the `micro_batch` of a policy asks for.

    Raises:
        UnsupportedFeatureError: where the update is not done by the adapter.
    """
    size = policy.micro_batch
    if size is None:
        return None
    if policy.owner not in ("auto", "adapter"):
        raise UnsupportedFeatureError(
            "micro_batch needs the update to be done by the device adapter; an "
            "optimizer hook or a model that updates by itself divides its batches "
            "itself: remove micro_batch",
            key="micro_batch",
        )
    return Splitter(None if size == "auto" else int(size), adapter)


def split(batch: Any, size: int | None) -> list[Any]:
    """`batch` in pieces of at most `size` samples, along dimension 0 of its tensors.

    Lists with one entry for each sample are divided too; whatever has no samples is
    in every piece.
    """
    count = batch_size_of(batch)
    if size is None or count <= size:
        return [batch]
    starts = range(0, count, size)
    return [_piece(batch, count, start, start + size) for start in starts]


def _piece(batch: Any, count: int, start: int, stop: int) -> Any:
    def cut(value: Any, _: str) -> Any:
        if isinstance(value, Tensor):
            sampled = value.dim() > 0 and value.shape[0] == count
            return value[start:stop] if sampled else value
        listed = isinstance(value, (list, tuple)) and len(value) == count
        if listed and not any(t.shape[:1] == (count,) for t in tensors_in(value)):
            return value[start:stop]
        return INSIDE

    return replaced(cut, batch)


def _minds_size(module: nn.Module) -> bool:
    """Whether results depend on which samples are together, or a size is compiled."""
    return (isinstance(module, _BatchNorm) and module.training) or is_compiled(module)


def _tried(
    attempt: Callable[[Pieces], T], pieces: Pieces
) -> tuple[T | None, str | None]:
    """(result, None), or (None, what failed) when memory did not suffice.

    The exception is not kept: its frames hold what took the memory.
    """
    try:
        return attempt(pieces), None
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        return None, str(error).strip().split("\n", 1)[0][:200] or type(error).__name__
