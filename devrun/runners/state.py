"""`LoopState`: how far a run is, as hooks read it and as a checkpoint keeps it."""

from __future__ import annotations

from typing import Any

__all__ = ["LoopState"]


class LoopState:
    """Counters of a run; written by the runner, read-only for hooks.

    `iter` counts optimizer updates and grows after the hooks of `after_train_iter`;
    `epoch` grows after those of `after_train_epoch`.
    """

    _epoch = 0
    _iter = 0
    _inner_iter = 0
    _max_epochs: int | None = None
    _max_iters: int | None = None
    _rank = 0
    _world_size = 1
    _model_name = ""
    _stop_reason: str | None = None
    _stop_wanted: str | None = None
    mode: str | None = None
    eval_steps = 0
    """Evaluation steps so far, also those of hooks."""

    @property
    def model_name(self) -> str:
        """Class name of the model."""
        return self._model_name

    @property
    def rank(self) -> int:
        """This process, 0 to `world_size` - 1."""
        return self._rank

    @property
    def world_size(self) -> int:
        """Number of processes."""
        return self._world_size

    @property
    def epoch(self) -> int:
        """Completed train epochs."""
        return self._epoch

    @property
    def iter(self) -> int:
        """Completed optimizer updates."""
        return self._iter

    @property
    def inner_iter(self) -> int:
        """Iteration inside the epoch (epoch runner) or workflow phase (iter runner)."""
        return self._inner_iter

    @property
    def max_epochs(self) -> int | None:
        """Train epochs of the whole run."""
        return self._max_epochs

    @property
    def max_iters(self) -> int | None:
        """Updates of the whole run; the epoch runner derives it from its loader."""
        return self._max_iters

    @property
    def should_stop(self) -> bool:
        """Whether the loop ends at the next iteration boundary."""
        return self._stop_reason is not None

    @property
    def stop_reason(self) -> str | None:
        """What `request_stop` was given."""
        return self._stop_reason

    @property
    def stop_wanted(self) -> str | None:
        """What this process alone was told to stop for, before the others know."""
        return self._stop_wanted

    def request_stop(self, reason: Any, *, alone: bool = False) -> None:
        """End the run in order after the iteration in progress.

        With several processes, all of them must ask in the same iteration, as a hook
        does that looks at what they agree on. One that was asked `alone`, as by a
        signal, goes on until they have told each other, which takes about a second.
        """
        if alone and self._world_size > 1:
            self._stop_wanted = str(reason)
        else:
            self._stop_reason = str(reason)
