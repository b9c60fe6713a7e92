"""What a LightningModule finds as `self.trainer`, and what becomes of `self.log`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NoReturn

from torch import Tensor

from devrun.devices.capture import captured
from devrun.dist import local_rank, weighted_means
from devrun.errors import ConfigError, ConfigTypeError, UnsupportedFeatureError, nearest
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
    logger = None
    loggers = ()
    sanity_checking = False
    fast_dev_run = False
    progress_bar_callback = None
    testing = property(lambda self: self._hook.stage == "test")
    training = property(lambda self: self._run.mode == "train")
    validating = property(lambda self: self._run.mode == "val" and not self.testing)
    world_size = property(lambda self: self._run.world_size)

    def __init__(self, run: Run, hook: Any) -> None:
        self._run, self._hook = run, hook

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
        run, batches = self._run, self._hook.batches
        compiles = Capability.HOST_WEIGHTS not in run.adapter.capabilities
        if compiles or batches is None:
            raise ConfigError(
                f"the model asks for self.trainer.{name}, which is not known before "
                "run() has the loader, nor on a device that compiles the step: use "
                "IterBasedRunner with max_iters, or give the optimizer to the runner"
            )
        share: int = -(-batches // run.world_size)
        return -(-share // run.policy.accumulate)


class ModelLog:
    """Takes what the model logs, for whoever called the model."""

    def __init__(self) -> None:
        self.training = True
        """Whether it is the training that logs."""
        self.batch_size: int | None = None
        """What the step in progress gave as one."""
        self.metrics: dict[str, Any] = {}
        """Objects of torchmetrics, by the name they are logged under."""
        self._taken: dict[str, Any] = {}
        self._of_epoch: set[str] = set()
        """Values of training_step whose mean over the epoch is logged."""
        self._with_step: set[str] = set()
        """Those of them that are logged for each step too."""
        self._sums: dict[str, list[Any]] = {}
        """Of the epoch in progress, by name: weighted sum and weight."""

    @contextmanager
    def taking(self) -> Iterator[dict[str, Any]]:
        """The values that are logged inside."""
        before, self._taken, self.batch_size = self._taken, {}, None
        try:
            yield self._taken
        finally:
            self._taken = before

    def log(
        self,
        name: str,
        value: Any,
        prog_bar: bool = False,
        logger: bool | None = None,
        on_step: bool | None = None,
        on_epoch: bool | None = None,
        reduce_fx: Any = "mean",
        enable_graph: bool = False,
        sync_dist: bool = False,
        sync_dist_group: Any = None,
        add_dataloader_idx: bool = True,
        batch_size: int | None = None,
        metric_attribute: str | None = None,
        rank_zero_only: bool = False,
    ) -> None:
        """Lightning's `self.log`; see its arguments there.

        In training a value is averaged over the interval of the logger; with
        `on_epoch` its mean over the epoch is logged too, as `NAME_epoch`, or as `NAME`
        with `on_step=False`. In validation its mean over all samples is a result of the
        evaluation. Means are always those of all ranks.
        """
        if getattr(reduce_fx, "__name__", reduce_fx) != "mean":
            raise UnsupportedFeatureError(
                f"self.log({name!r}, reduce_fx={reduce_fx!r}): only 'mean' is taken; "
                "log a torchmetrics object such as MaxMetric for another"
            )
        if batch_size is not None:
            self.batch_size = batch_size
        if callable(getattr(value, "compute", None)) and hasattr(value, "reset"):
            self._take_metric(name, value)
            return
        if isinstance(value, Tensor):
            if value.numel() != 1:
                raise ConfigTypeError(
                    f"self.log({name!r}): one number is needed, got a tensor of the "
                    f"shape {tuple(value.shape)}; log its mean()"
                )
            value = value.detach().reshape(())
        self._taken[name] = value
        if self.training and on_epoch:
            self._of_epoch.add(name)
            if on_step or on_step is None:
                self._with_step.add(name)

    def _take_metric(self, name: str, metric: Any) -> None:
        if captured():
            raise UnsupportedFeatureError(
                f"self.log({name!r}) of a {type(metric).__name__}: this device runs "
                "the step as a compiled graph, in which such an object keeps no state; "
                "log a mean, or give `ipu: {evaluate_on: host}` for validation_step"
            )
        self.metrics[name] = metric

    def computed(self) -> dict[str, float]:
        """The values of the metrics that were logged, which begin anew."""
        found = {name: float(one.compute()) for name, one in self.metrics.items()}
        for metric in self.metrics.values():
            metric.reset()
        self.metrics.clear()
        return found

    def add(self, outputs: Mapping[str, Any]) -> None:
        """Count what an update logged towards the means over its epoch."""
        for name in self._of_epoch & outputs["log_vars"].keys():
            total = self._sums.setdefault(name, [0.0, 0])
            total[0] += outputs["log_vars"][name] * outputs["num_samples"]
            total[1] += outputs["num_samples"]

    def means(self) -> dict[str, float]:
        """The means over the epoch, under the names that Lightning gives them."""
        sums = {n: (float(s), w) for n, (s, w) in sorted(self._sums.items())}
        self._sums.clear()
        return {
            f"{name}_epoch" if name in self._with_step else name: mean
            for name, mean in weighted_means(sums).items()
        }

    def state_dict(self) -> dict[str, Any]:
        """The sums of the epoch in progress; empty between two."""
        sums = {name: [float(s), w] for name, (s, w) in self._sums.items()}
        return {"sums": sums, "with_step": sorted(self._with_step)} if sums else {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take back what `state_dict` gave."""
        self._sums = {name: list(pair) for name, pair in state["sums"].items()}
        self._with_step = set(state["with_step"])
