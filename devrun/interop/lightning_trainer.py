"""What a LightningModule finds as `self.trainer`: facts of the run, to read."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from types import SimpleNamespace
from typing import Any, NoReturn

from devrun.devices.frozen import captured
from devrun.dist import local_rank
from devrun.errors import ConfigError, UnsupportedFeatureError, nearest
from devrun.interop.lightning_strategy import Strategy
from devrun.run import Run
from devrun.step import Capability

STAGE: ContextVar[str] = ContextVar("STAGE", default="fit")
"""What models that are built are for: Lightning's `stage`."""


@contextmanager
def in_stage(stage: str) -> Iterator[None]:
    """LightningModules that are built inside are for `stage`, not for training.

    Args:
        stage: test, validate or predict.
    """
    token = STAGE.set(stage)
    try:
        yield
    finally:
        STAGE.reset(token)


class AbsentError(UnsupportedFeatureError, AttributeError):
    """A name of Lightning's that is not here; `hasattr` sees it as that."""


class Trainer:
    """The part of Lightning's Trainer that can be told of a run of devrun.

    `should_stop = True` ends the run after the iteration in progress.

    Raises:
        UnsupportedFeatureError: another name of Lightning's is read, or a counter
            inside a step that a device captures as a graph.
    """

    accumulate_grad_batches = property(lambda self: self._run.policy.accumulate)
    callback_metrics = property(lambda self: dict(self._run.log_buffer.output))
    current_epoch = property(lambda self: self._counter("current_epoch", "epoch"))
    default_root_dir = property(lambda self: self._run.work_dir)
    global_rank = property(lambda self: self._run.rank)
    global_step = property(lambda self: self._counter("global_step", "iter"))
    is_global_zero = property(lambda self: self._run.rank == 0)
    log_dir = property(lambda self: self._run.work_dir)
    local_rank = property(lambda self: local_rank() or 0)
    logged_metrics = callback_metrics
    max_epochs = property(lambda self: self._run.max_epochs)
    optimizers = property(lambda self: [self._run.optimizer])
    sanity_checking = False
    fast_dev_run = False
    progress_bar_callback = None
    testing = property(lambda self: self._hook.stage == "test")
    training = property(lambda self: self._run.mode == "train")
    validating = property(lambda self: self._run.mode == "val" and not self.testing)
    world_size = property(lambda self: self._run.world_size)

    def __init__(self, run: Run, hook: Any) -> None:
        self._run, self._hook = run, hook
        self.strategy = Strategy(run, hook)
        self.logger = NoLogger()
        self.loggers: tuple[Any, ...] = ()

    def __getattr__(self, name: str) -> NoReturn:
        known = sorted(n for n in dir(type(self)) if not n.startswith("_"))
        raise AbsentError(
            f"self.trainer.{name}: the model runs without Lightning's Trainer; "
            f"{nearest(name, known)}"
        )

    def _counter(self, name: str, source: str) -> int:
        if captured():
            raise UnsupportedFeatureError(
                f"the step reads {name}, but this device runs it as a compiled graph, "
                "in which the number would stay what it is now: keep it in a buffer "
                "that the step adds to"
            )
        count: int = getattr(self._run, source)
        return count

    @property
    def should_stop(self) -> bool:
        return self._run.should_stop

    @should_stop.setter
    def should_stop(self, value: bool) -> None:
        if value:
            self._run.request_stop("the model set self.trainer.should_stop")

    @property
    def max_steps(self) -> int:
        return -1 if self._run.max_iters is None else self._run.max_iters

    @property
    def num_training_batches(self) -> int:
        """Batches of an epoch in one process."""
        updates = self._updates_per_epoch("num_training_batches")
        return updates * self._run.policy.accumulate

    @property
    def estimated_stepping_batches(self) -> int:
        """Updates of the whole run."""
        if not self._run.state.by_epoch and self._run.max_iters is not None:
            return self._run.max_iters
        updates = self._updates_per_epoch("estimated_stepping_batches")
        return updates * (self._run.max_epochs or 0)

    def _updates_per_epoch(self, name: str) -> int:
        run = self._run
        if Capability.HOST_WEIGHTS not in run.adapter.capabilities:
            raise ConfigError(
                f"the model asks for self.trainer.{name}, which is not known before "
                f"device {run.adapter.name!r} has the model and its optimizer: use "
                "IterBasedRunner with max_iters"
            )
        batches = self._hook.batches
        if batches is None:
            raise ConfigError(
                f"the model asks for self.trainer.{name}, which is not known before "
                "run() has the data loader: use IterBasedRunner with max_iters, or "
                "give the optimizer to the runner"
            )
        share: int = -(-batches // run.world_size)
        return -(-share // run.policy.accumulate)

    @property
    def lr_scheduler_configs(self) -> list[Any]:
        found = []
        for hook in self._hook.schedulers:
            made = list(hook.schedulers.values())
            found += [SimpleNamespace(scheduler=s) for s in made or [hook.given]]
        return found


class NoLogger:
    """Lightning's `self.logger` where there is none: false, and of no use."""

    def __bool__(self) -> bool:
        return False

    def __getattr__(self, name: str) -> NoReturn:
        raise AbsentError(
            f"self.logger.{name}: loggers are hooks here, listed in log_config; "
            "self.log gives them values"
        )


class Unknown:
    """A number that a captured graph would keep as it is: it cannot be used."""

    def __init__(self, name: str) -> None:
        self._name = name

    def _refuse(self, *args: Any) -> NoReturn:
        raise UnsupportedFeatureError(
            f"the step uses {self._name}, but this device runs it as a compiled graph, "
            "in which the number would stay what it is now: leave it out"
        )

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = _refuse
    __mod__ = __rmod__ = __floordiv__ = __truediv__ = __rtruediv__ = _refuse
    __lt__ = __le__ = __gt__ = __ge__ = __eq__ = __ne__ = _refuse
    __bool__ = __index__ = __int__ = __float__ = __hash__ = _refuse
    __str__ = __repr__ = __format__ = _refuse
