"""`Splitter`: micro-batches that fit into memory.

One update keeps its samples: they are divided into more and smaller micro-batches
whose gradients are added up, weighted by their samples. The result is that of the
whole batch but for rounding, for models whose loss is a mean over samples; statistics
that a model takes of its batch (BatchNorm) are then those of smaller batches.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from devrun.data import rng
from devrun.dist import all_reduce_max, get_dist_info
from devrun.errors import DeviceMemoryError, UnsupportedFeatureError, is_out_of_memory
from devrun.step import MicroBatches, UpdatePolicy
from devrun.tensors import INSIDE, batch_size_of, replaced, tensors_in

logger = logging.getLogger("devrun")

T = TypeVar("T")


class Pieces(MicroBatches):
    """Micro-batches that are divided already."""


class Splitter:
    """Divides the batches of an update; for `auto`, halves them when memory runs out.

    A failed attempt leaves nothing behind: gradients are cleared, and the random
    streams and the buffers of the model are put back.

    Args:
        size: samples of a micro-batch at most; None for `auto`, which begins with the
            whole batch.
        adapter: gives and takes back the random state of the device, and empties its
            cache.
    """

    def __init__(self, size: int | None, adapter: Any) -> None:
        self.size = size
        self.fixed = size is not None
        self._adapter = adapter
        self._together = get_dist_info()[1] > 1

    def run(
        self,
        parts: Sequence[Any],
        attempt: Callable[[Pieces], T],
        model: nn.Module,
        clear: Callable[[], None],
    ) -> T:
        """What `attempt` gives for the parts, divided as finely as it takes.

        Raises:
            DeviceMemoryError: single samples do not fit.
        """
        while True:
            pieces = Pieces(piece for part in parts for piece in split(part, self.size))
            if self.fixed:
                return attempt(pieces)
            put_back = self._snapshot(model)
            result, failure = _tried(attempt, pieces)
            if self._together and all_reduce_max(float(failure is not None)) > 0:
                failure = failure or "another rank ran out of memory"
            if failure is None:
                return result  # type: ignore[return-value]
            clear()
            put_back()
            self._adapter.empty_cache()
            self._halve(pieces, failure)

    def state_dict(self) -> dict[str, Any]:
        """The size that has been found."""
        return {} if self.fixed or self.size is None else {"size": self.size}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Begin with the size that another run found."""
        if state.get("size") and not self.fixed:
            self.size = int(state["size"])

    def _snapshot(self, model: nn.Module) -> Callable[[], None]:
        """The function that puts buffers and random streams back to what they are."""
        kept = [(buffer, buffer.detach().clone()) for buffer in model.buffers()]
        host, device = rng.capture(), self._adapter.rng_state()

        def put_back() -> None:
            with torch.no_grad():
                for buffer, value in kept:
                    buffer.copy_(value)
            rng.restore(host)
            self._adapter.set_rng_state(device)

        return put_back

    def _halve(self, pieces: Sequence[Any], failure: str) -> None:
        # all ranks do as many pieces
        largest = int(all_reduce_max(float(max(map(batch_size_of, pieces)))))
        if largest <= 1:
            raise DeviceMemoryError(
                f"out of memory with micro-batches of 1 samples ({failure}): use a "
                "smaller model or input, or precision bf16"
            )
        self.size = (largest + 1) // 2
        logger.warning(
            "out of memory with micro-batches of %d samples: %d from here on, and more "
            "of them (%s)",
            largest,
            self.size,
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

    def piece(start: int) -> Any:
        def cut(value: Any, _: str) -> Any:
            if isinstance(value, Tensor):
                sampled = value.dim() > 0 and value.shape[0] == count
                return value[start : start + size] if sampled else value
            listed = isinstance(value, (list, tuple)) and len(value) == count
            if listed and not any(t.shape[:1] == (count,) for t in tensors_in(value)):
                return value[start : start + size]
            return INSIDE

        return replaced(cut, batch)

    return [piece(start) for start in range(0, count, size)]


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
