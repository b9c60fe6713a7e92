"""A `LightningModule` as the model of a run, without Lightning's Trainer.

The package supplies the base class alone, as `lightning` or `pytorch_lightning`; which
one is seen from the model, so that neither is imported here.

    training_step, validation_step,
    test_step, predict_step                        the step of the model
    configure_optimizers                           the optimizer, schedulers
    self.log, self.trainer                         `devrun.interop.lightning_trainer`
    on_train_epoch_start and its like              called; others are refused
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from devrun.config.numbers import whole_number
from devrun.devices.capture import captured
from devrun.dist import weighted_means
from devrun.errors import ConfigError, ConfigTypeError, UnsupportedFeatureError, nearest
from devrun.hooks.base import Hook
from devrun.hooks.schedules.torch_scheduler import (
    PlateauSchedulerHook,
    TorchSchedulerHook,
)
from devrun.interop.lightning_trainer import STAGE, ModelLog, Trainer
from devrun.metrics import StatefulMetric
from devrun.models.calls import Wrapped, target_in
from devrun.models.steps import separate_loss_step
from devrun.run import Run
from devrun.tensors import batch_size_of

PACKAGES = ("lightning.pytorch", "pytorch_lightning")

NOT_CALLED = {
    "backward": "change the loss in training_step",
    "configure_callbacks": "write a hook and list it in custom_hooks",
    "configure_gradient_clipping": "set grad_clip in optimizer_config",
    "configure_sharded_model": "write configure_model",
    "lr_scheduler_step": "return a scheduler of torch's kind",
    "on_after_batch_transfer": "transform batches in the collate_fn of the data loader",
    "on_before_backward": "write on_train_batch_end, or a hook",
    "on_before_batch_transfer": "transform batches in the collate_fn",
    "on_before_optimizer_step": "write on_after_backward",
    "on_before_zero_grad": "write on_train_batch_start or on_train_batch_end",
    "on_test_model_eval": "write on_test_start",
    "on_test_model_train": "write on_test_end",
    "on_validation_model_eval": "write on_validation_start",
    "on_validation_model_train": "write on_validation_end",
    "on_validation_model_zero_grad": "write on_validation_start",
    "optimizer_step": "set up updates in optimizer_config",
    "optimizer_zero_grad": "set up updates in optimizer_config",
    "transfer_batch_to_device": "return tensors in dicts, lists or tuples",
}
"""Lightning's hooks that no device here has a place for -> what does that instead."""


def lightning_class(name: str) -> tuple[type, ...]:
    """The class `name` of those of Lightning's packages that were imported."""
    loaded = (sys.modules.get(package) for package in PACKAGES)
    return tuple(getattr(module, name) for module in loaded if hasattr(module, name))


def contract_of(model: nn.Module) -> LightningHook | None:
    """That of a LightningModule, else None."""
    kinds = lightning_class("LightningModule")
    return LightningHook(model) if isinstance(model, kinds) else None


class LightningHook(Hook):
    """The contract of a LightningModule: its step, its hooks, its log, its optimizer.

    Raises:
        UnsupportedFeatureError: the model overrides what no device has a place for,
            or optimizes by itself.
    """

    brings_optimizer = True
    stacked = None

    # Behind evaluation (LOW, 70), whose results on_train_epoch_end may read, and before
    # the loggers, which clear them (90).
    priority: Any = 80

    def __init__(self, model: nn.Module) -> None:
        self.model: Any = model
        self.run: Any = None
        """The run that the model is joined to."""
        self.stage = STAGE.get()
        """What the model is built for: fit, validate, test or predict."""
        self.batch_idx = 0
        """Of the next step of the phase in progress."""
        self.batches: int | None = None
        self._log = ModelLog()
        self._kept: dict[str, Any] = {}
        """Metrics of the training that an evaluation interrupts."""

    def __deepcopy__(self, memo: Any) -> LightningHook:
        return self  # a copy of the model logs to the same run

    def join(self, run: Any, optimizer: Any, loss: Any) -> None:
        """Make `run` what the model sees as its Trainer; `setup` is called.

        Raises:
            ConfigError: `optimizer` or `loss` was given beside the model's own.
        """
        name = type(self.model).__name__
        if loss is not None:
            raise ConfigError(
                f"{name} is a LightningModule, whose loss training_step returns: "
                "remove the separate loss"
            )
        if optimizer is not None and self._overrides("configure_optimizers"):
            raise ConfigError(
                f"{name} has configure_optimizers, and an optimizer is given: remove "
                "one of the two"
            )
        self._refuse()
        self.run = run
        run.eval_metrics.append(LightningResults(self))
        run.register_hook(self)
        own = {"_trainer": Trainer(run, self), "log": self._log.log}
        for module in self._modules():  # in place of what asks Lightning's Trainer
            vars(module).update(own, optimizers=lambda *args, **kwargs: run.optimizer)
        self._call("configure_model")
        self._call("setup", self.stage)

    def _refuse(self) -> None:
        name = type(self.model).__name__
        if not self.model.automatic_optimization:
            raise UnsupportedFeatureError(
                f"{name} sets automatic_optimization = False: return the loss from "
                "training_step instead, or write MMCV's train_step(batch, optimizer), "
                "which may update by itself"
            )
        for method, instead in NOT_CALLED.items():
            if self._overrides(method):
                raise UnsupportedFeatureError(
                    f"{name} has {method}, which is not called here: {instead}"
                )

    def _overrides(self, name: str) -> bool:
        kinds = lightning_class("LightningModule")
        base = next(kind for kind in type(self.model).__mro__ if kind in kinds)
        own = getattr(type(self.model), name, None)
        return own is not None and own is not getattr(base, name, None)

    def _modules(self) -> list[Any]:
        kinds = lightning_class("LightningModule")
        return [part for part in self.model.modules() if isinstance(part, kinds)]

    def optimizer(self) -> Any:
        """What `configure_optimizers` gives; its schedulers become hooks of the run."""
        if not self._overrides("configure_optimizers"):
            return None
        optimizer, schedulers = configured(self.model)
        for hook in schedulers:
            self.run.register_hook(hook)
        return optimizer

    @property
    def judging(self) -> str:
        """Which of the model's steps an evaluation calls."""
        tested = self.stage == "test" and self._overrides("test_step")
        return "test" if tested else "validation"

    # the step

    def step(self, step: Wrapped, batch: Any, mode: str) -> dict[str, Any]:
        """One step of the model, as `devrun.models.step_module` wants it."""
        model: Any = step.model
        # a captured graph would keep the number that it is now
        index = None if captured() else self.batch_idx
        self.batch_idx += 1
        if mode == "predict":
            return self._predict(step, batch, index)
        training = self._log.training = mode == "train"
        method = "training_step" if training else f"{self.judging}_step"
        if not self._overrides(method):
            raise ConfigError(
                f"{step.model_name} has no {method}: write it"
                + ("" if training else ", or leave data.val out")
            )
        tells = not training and not captured()
        with self._log.taking() as logged:
            if tells:
                self._call(f"on_{self.judging}_batch_start", batch, index)
            output = _called(getattr(model, method), batch, index)
            if tells:
                self._call(f"on_{self.judging}_batch_end", output, batch, index)
        fields = dict(output) if isinstance(output, Mapping) else {"loss": output}
        loss = fields.pop("loss", None)
        if not isinstance(loss, Tensor) or loss.dim():
            if training:
                raise ConfigTypeError(
                    f"{method} of {step.model_name} must return a loss of one number, "
                    f"or a dict with it, got {type(loss).__name__}"
                )
            loss = None
        size = self._log.batch_size or batch_size_of(batch)
        result = {"loss": loss, "log_vars": logged, "num_samples": size}
        if not training:
            of_pair = isinstance(batch, (tuple, list)) and len(batch) == 2
            labels = batch[1] if of_pair else target_in(batch)
            given = {"predictions": fields.get("logits"), "targets": labels}
            result.update({k: v for k, v in given.items() if v is not None})
        return {**fields, **result}

    def _predict(self, step: Wrapped, batch: Any, index: Any) -> dict[str, Any]:
        if not self._overrides("predict_step"):
            return separate_loss_step(step, batch, "predict")
        model: Any = step.model
        return {
            "loss": None,
            "log_vars": {},
            "num_samples": batch_size_of(batch),
            "predictions": _called(model.predict_step, batch, index),
        }

    def _call(self, name: str, *args: Any) -> Any:
        if self._overrides(name):
            return _called(getattr(self.model, name), *args)
        return None

    def _publish(self, run: Run, values: Mapping[str, Any]) -> None:
        for name, value in values.items():
            run.log_buffer.output[name] = float(value)
            run.log_buffer.ready = True

    # the stages of the run

    def get_triggered_stages(self) -> list[str]:
        stages = super().get_triggered_stages()
        if not self._overrides("on_after_backward"):
            stages.remove("after_backward")
        return stages

    def before_run(self, runner: Run) -> None:
        self._place()
        self._call("on_fit_start")
        self._call("on_train_start")

    def before_train_epoch(self, runner: Run) -> None:
        self._call("on_train_epoch_start")

    def before_train_iter(self, runner: Run) -> None:
        index = runner.inner_iter
        self.batch_idx = index * runner.policy.accumulate
        if self._call("on_train_batch_start", runner.data_batch, index) == -1:
            raise UnsupportedFeatureError(
                f"on_train_batch_start of {runner.model_name} returned -1, which skips "
                "the rest of an epoch: call self.trainer.should_stop = True to end the "
                "run"
            )

    def after_backward(self, runner: Run) -> None:
        self._call("on_after_backward")

    def after_train_iter(self, runner: Run) -> None:
        outputs = runner.outputs
        self._log.add(outputs)
        if self._overrides("on_train_batch_end"):
            self._log.training = True
            with self._log.taking() as logged:
                args = (outputs, runner.data_batch, runner.inner_iter)
                self._call("on_train_batch_end", *args)
            runner.log_buffer.update(logged, outputs["num_samples"])

    def after_train_epoch(self, runner: Run) -> None:
        self._publish(runner, self._log.means())
        self._publish(runner, self._log.computed())
        with self._log.taking() as logged:
            self._call("on_train_epoch_end")
        self._publish(runner, logged)

    def before_val_epoch(self, runner: Run) -> None:
        self._begin_validation()

    def after_val_epoch(self, runner: Run) -> None:
        self._publish(runner, self._end_validation())

    def after_run(self, runner: Run) -> None:
        self._call("on_train_end")
        self._call("on_fit_end")
        self._call("teardown", "fit")

    def _begin_validation(self) -> None:
        self._place()
        self.batch_idx, self._log.training = 0, False
        self._kept, self._log.metrics = self._log.metrics, {}
        for name in ("start", "epoch_start"):
            self._call(f"on_{self.judging}_{name}")

    def _end_validation(self) -> dict[str, float]:
        """What the model logged at the end, the mean of all ranks, and its metrics."""
        self._log.training = False
        with self._log.taking() as logged:
            self._call(f"on_{self.judging}_epoch_end")
        found = {**self._log.computed(), **{k: float(v) for k, v in logged.items()}}
        self._call(f"on_{self.judging}_end")
        self._log.metrics, self._log.training = self._kept, True
        return weighted_means({name: (found[name], 1) for name in sorted(found)})

    def _place(self) -> None:
        """Let `self.device` and `self.dtype` be those of the weights."""
        first = next(self.model.parameters(), None)
        if first is None:
            return
        for module in self._modules():
            vars(module).update(_device=first.device, _dtype=first.dtype)

    # what is saved

    def state_dict(self) -> dict[str, Any]:
        """What on_save_checkpoint adds, and the sums of the epoch in progress."""
        tree: dict[str, Any] = {}
        self._call("on_save_checkpoint", tree)
        own = {"checkpoint": tree} if tree else {}
        return {**own, **self._log.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take back what `state_dict` gave."""
        if "sums" in state:
            self._log.load_state_dict(state)
        if "checkpoint" in state:
            self._call("on_load_checkpoint", state["checkpoint"])


class LightningResults(StatefulMetric):
    """The part of an evaluation that the model does at its beginning and end."""

    def __init__(self, hook: LightningHook) -> None:
        self.name, self._hook = "validation", hook

    def reset(self) -> None:
        self._hook._begin_validation()

    def update(self, outputs: Mapping[str, Any]) -> None:
        """Nothing: each step logs its own values."""

    def compute(self) -> dict[str, float]:
        return self._hook._end_validation()


def _called(method: Callable[..., Any], *args: Any) -> Any:
    """`method` with as many of the arguments as it takes, as Lightning calls it."""
    parameters = inspect.signature(method).parameters.values()
    if any(p.kind is p.VAR_POSITIONAL for p in parameters):
        return method(*args)
    if "dataloader_idx" in {p.name for p in parameters if p.default is p.empty}:
        args = (*args, 0)  # there is one loader
    places = sum(
        p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) for p in parameters
    )
    return method(*args[:places])


# Optimizers and schedulers ---------------------------------------------------
# What `configure_optimizers` returns: an optimizer; or `[optimizer], [scheduler or its
# dict, ...]`; or `{"optimizer": ..., "lr_scheduler": ...}`. The dict of a scheduler has
# `scheduler`, and may have `interval` (`epoch` or `step`), `frequency`, `monitor`,
# `strict` and `name`.

KEYS = ("scheduler", "interval", "frequency", "monitor", "strict", "name")


def configured(model: Any) -> tuple[Optimizer, list[TorchSchedulerHook]]:
    """The optimizer of a LightningModule, and a hook for each of its schedulers.

    Raises:
        ConfigError: it gave none, or something else.
        UnsupportedFeatureError: it gave several, which only a model that optimizes by
            itself can use.
    """
    name = f"configure_optimizers of {type(model).__name__}"
    optimizers, schedulers = _parts(model.configure_optimizers())
    if len(optimizers) > 1:
        raise UnsupportedFeatureError(
            f"{name} gives {len(optimizers)} optimizers, which takes manual "
            "optimization: give one with several parameter groups"
        )
    if not optimizers or not isinstance(optimizers[0], Optimizer):
        got = type(optimizers[0]).__name__ if optimizers else "nothing"
        raise ConfigTypeError(
            f"{name} must give a torch.optim.Optimizer, alone or with lr schedulers, "
            f"got {got}"
        )
    return optimizers[0], [_hook(entry, name) for entry in schedulers]


def _parts(given: Any) -> tuple[list[Any], list[Any]]:
    """Optimizers and schedulers, each as a list."""
    if isinstance(given, Mapping):
        scheduler = given.get("lr_scheduler")
        return _listed(given.get("optimizer")), _listed(scheduler)
    if not isinstance(given, (list, tuple)):
        return _listed(given), []
    if len(given) == 2 and all(isinstance(part, (list, tuple)) for part in given):
        return list(given[0]), list(given[1])
    if all(isinstance(part, Mapping) for part in given):
        both = [_parts(part) for part in given]
        return [o for os, _ in both for o in os], [s for _, ss in both for s in ss]
    return list(given), []


def _listed(value: Any) -> list[Any]:
    if value is None:
        return []
    return list(value) if isinstance(value, (list, tuple)) else [value]


def _hook(entry: Any, name: str) -> TorchSchedulerHook:
    facts = dict(entry) if isinstance(entry, Mapping) else {"scheduler": entry}
    for key in facts:
        if key not in KEYS:
            raise ConfigError(
                f"{name}: the dict of an lr scheduler has {key!r}; {nearest(key, KEYS)}"
            )
    scheduler, interval = facts.get("scheduler"), facts.get("interval", "epoch")
    if interval not in ("epoch", "step"):
        raise ConfigError(
            f"{name}: interval of an lr scheduler must be one of epoch, step, got "
            f"{interval!r}"
        )
    frequency = whole_number(f"{name}: frequency", facts.get("frequency", 1))
    if not isinstance(scheduler, (LRScheduler, ReduceLROnPlateau)):
        raise ConfigTypeError(
            f"{name}: an lr scheduler must be one of torch.optim.lr_scheduler, got "
            f"{type(scheduler).__name__}"
        )
    by_epoch = interval == "epoch"
    if not isinstance(scheduler, ReduceLROnPlateau):
        return TorchSchedulerHook(scheduler, by_epoch, frequency=frequency)
    monitor = facts.get("monitor")
    if not isinstance(monitor, str) or frequency != 1:
        raise ConfigError(
            f"{name}: ReduceLROnPlateau needs `monitor`, the name of a value that "
            "validation_step logs, and no frequency: it looks after each evaluation"
        )
    return PlateauSchedulerHook(monitor, by_epoch, scheduler)
