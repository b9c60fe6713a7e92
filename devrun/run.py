"""`RunState`: where a run is. `Run`: what hooks and device adapters may use of one.

A hook is handed the runner; it is typed against `Run`, so that nothing it reads
depends on how a runner is built. The loops alone write the `RunState`: a resume
`seek`s.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from torch import nn

from devrun.data.timing import Clock
from devrun.log.buffer import LogBuffer
from devrun.step import Capability, StepOutput, UpdatePolicy


@dataclass
class RunState:
    """The counters of a run. A checkpoint is always taken between two updates.

    `iter` counts optimizer updates and grows after the hooks of `after_train_iter`;
    `epoch` grows after those of `after_train_epoch`.
    """

    by_epoch: bool = True
    """What the run's limit counts, and what intervals count unless they say so."""
    max_epochs: int | None = None
    max_iters: int | None = None
    """Updates of the whole run; an epoch run derives it from its loader."""
    mode: str | None = None
    """`train` or `val`; None before the first phase."""
    epoch: int = 0
    """Completed train epochs."""
    iter: int = 0
    """Completed optimizer updates."""
    inner_iter: int = 0
    """Iteration inside the epoch, or inside the workflow phase where updates count."""
    done: int = 0
    """Updates of the present epoch."""
    updates: int = 0
    """Like `iter`, but right already while `after_train_iter` runs."""
    train_steps: int = 0
    """Training steps that the adapter did; a loop of a user's own may go without."""
    in_loop: bool = False
    """Whether the phases have begun, so that no other run can be taken up."""
    phase_over: bool = False
    """Whether the hooks of a phase's end are running."""
    cut_short: bool = False
    """Whether the phase ended before its data did."""
    stop_reason: str | None = None
    """Why all processes end their loops after the iteration in progress; else None."""
    stop_wanted: str | None = None
    """Why this process has to end, as long as it alone knows that, such as after a
    signal. It trains on meanwhile: `StopTogetherHook` tells the others, and when all
    know, this becomes the `stop_reason` of each."""
    clock: Clock = field(default_factory=Clock)
    """Where the time of training went."""

    @property
    def limit_name(self) -> str:
        """Of the argument that says how long the run is."""
        return "max_epochs" if self.by_epoch else "max_iters"

    @property
    def finished(self) -> bool:
        """Whether the limit of the run is reached."""
        if self.by_epoch:
            return self.epoch >= (self.max_epochs or 0)
        return self.iter >= (self.max_iters or 0)

    @property
    def why_ended(self) -> str:
        """In words, for the log, the last lines and `run.json`."""
        if self.stop_reason is not None:
            return self.stop_reason
        name = self.limit_name
        return f"{name} is reached ({getattr(self, name)})"

    @property
    def last_stages(self) -> tuple[str, str]:
        """The stages at the end of a phase."""
        kind = "epoch" if self.by_epoch else "iter"
        return f"after_train_{kind}", f"after_val_{kind}"

    @contextmanager
    def ending(self, stage: str) -> Iterator[None]:
        """The hooks of `stage` run, which may be one at the end of a phase."""
        before = self.phase_over
        self.phase_over = before or stage in self.last_stages
        try:
            yield
        finally:
            self.phase_over = before

    def request_stop(self, reason: str, *, alone: bool) -> None:
        """Stop at the next boundary; `alone`, once the other ranks know of it."""
        if alone:
            self.stop_wanted = reason
        else:
            self.stop_reason = reason

    def position(self) -> dict[str, int]:
        """What has been done: whole `epoch`s, `done` updates of the next, `iter`."""
        over = self.phase_over and self.mode == "train" and self.by_epoch
        return {
            "epoch": self.epoch + over,
            "done": 0 if over else self.done,
            # a loop of a user's counts no updates
            "iter": max(self.updates, self.iter),
        }

    def seek(self, epoch: int, iter: int, done: int) -> None:
        """Go to a saved `position`."""
        self.epoch, self.iter, self.done = epoch, iter, done
        self.updates = iter


class Device(Protocol):
    """What a hook may ask of the device adapter; see `devrun.devices.base`."""

    @property
    def name(self) -> str: ...
    @property
    def emulated(self) -> bool: ...
    @property
    def capabilities(self) -> frozenset[Capability]: ...
    @property
    def data_share(self) -> tuple[int, int, bool]: ...
    def sync_to_host(self, model: Any) -> None: ...
    def sync_to_device(self, model: Any) -> None: ...
    def check_finite(self, model: Any = None) -> None: ...
    def stats(self) -> Mapping[str, float]: ...
    def empty_cache(self) -> None: ...
    def synchronize(self) -> None: ...


class Loader(Protocol):
    """The data of a phase, one item per update; see `devrun.data.prepared`."""

    dataset: Any
    """The user's; None if the loader does not tell."""

    @property
    def samples_per_update(self) -> int | None: ...
    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[Any]: ...
    def set_epoch(self, epoch: int) -> None: ...
    def start_at(self, update: int) -> None: ...
    def close(self) -> None: ...
    def explain(self, error: BaseException) -> Exception | None: ...


class Saver(Protocol):
    """What a hook may ask of the writer; see `devrun.runners.checkpointer`."""

    run_id: str
    last_saved_iter: int
    rewound_to: int | None
    resumed_from: Path | None

    def root(self, out_dir: Any = None) -> Path: ...
    def finish(self) -> None: ...
    def check(self) -> None: ...
    def wait_for_writer(self) -> None: ...


class Run(Protocol):
    """A run as its hooks see it; MMCV's names for what MMCV has."""

    log_buffer: LogBuffer
    logger: logging.Logger
    meta: dict[str, Any]
    outputs: StepOutput
    """Of the last step."""
    data_batch: Any
    """Of the step in progress; there from `before_*_iter` to `after_*_iter`."""
    data_loader: Loader
    """Of the phase in progress."""
    work_dir: str | None
    timestamp: str
    eval_contexts: list[Callable[[Any], AbstractContextManager[Any]]]
    """Called with the run and entered while it evaluates."""
    eval_metrics: list[Any]
    """What the model brings to evaluations, beside their own metrics."""

    @property
    def state(self) -> RunState: ...
    @property
    def checkpointer(self) -> Saver: ...
    @property
    def adapter(self) -> Device: ...
    @property
    def model(self) -> nn.Module: ...
    @property
    def model_name(self) -> str: ...
    @property
    def optimizer(self) -> Any: ...
    @property
    def policy(self) -> UpdatePolicy: ...
    @property
    def hooks(self) -> list[Any]: ...
    @property
    def mode(self) -> str | None: ...
    @property
    def epoch(self) -> int: ...
    @property
    def iter(self) -> int: ...
    @property
    def inner_iter(self) -> int: ...
    @property
    def max_epochs(self) -> int | None: ...
    @property
    def max_iters(self) -> int | None: ...
    @property
    def rank(self) -> int: ...
    @property
    def world_size(self) -> int: ...
    @property
    def should_stop(self) -> bool: ...
    @property
    def stop_wanted(self) -> str | None: ...
    @property
    def own_loop(self) -> bool: ...
    @property
    def train_steps(self) -> int: ...
    @property
    def eval_steps(self) -> int: ...
    def request_stop(self, reason: Any, *, alone: bool = False) -> None: ...
    def current_lr(self) -> Any: ...
    def current_momentum(self) -> Any: ...
    def evaluating(self) -> AbstractContextManager[None]: ...
    def trying_out(self) -> AbstractContextManager[None]: ...
    def eval_step(self, data_batch: Any, mode: str = "val") -> StepOutput: ...
    def prepare_eval_loader(self, data_loader: Any) -> Any: ...
    def save_checkpoint(self, *args: Any, **kwargs: Any) -> str: ...
    def resume(self, checkpoint: Any, *args: Any, **kwargs: Any) -> None: ...
