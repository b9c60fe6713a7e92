"""`BaseRunner`: owns the model, the optimizer and the loaders; a loop is a subclass."""

from __future__ import annotations

import contextlib
import logging
import os
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from devrun.devices.base import DeviceAdapter
from devrun.devices.resolve import resolve_device
from devrun.dist import broadcast_object, get_dist_info
from devrun.errors import (
    ConfigError,
    DataError,
    DeviceMemoryError,
    DivergedError,
    HangError,
)
from devrun.hooks.dispatch import HookTable
from devrun.hooks.stop import StopTogetherHook
from devrun.log.buffer import LogBuffer
from devrun.log.logger import get_logger
from devrun.models.finite import not_finite
from devrun.models.fp16 import wrap_fp16_model
from devrun.models.step_module import StepModule
from devrun.peers import lost_peer
from devrun.runners.arguments import (
    check_arguments,
    check_limit,
    check_seed,
    describe_loader,
    length,
    made_work_dir,
)
from devrun.runners.helpers import get_host_info, get_time_str
from devrun.runners.limit import Limited
from devrun.runners.registration import HookConfig, HookRegistration
from devrun.runners.rollback import RollingBack
from devrun.runners.workflow import Workflow
from devrun.step import StepOutput, UpdatePolicy

__all__ = ["BaseRunner"]

FEW_UPDATES = 10
"""A run of fewer, such as a dry one, may end while a loss scale is still searched."""


class BaseRunner(HookRegistration, RollingBack, ABC):
    """What the epoch and the iteration runner share.

    The constructor and the command line meet here: `device` names the adapter that
    does everything the hardware needs. The model is placed and wrapped at the first
    `run`, when the optimizer's settings are known; `model` stays the user's module.

    Args:
        model: a module with MMCV's `train_step`, one whose forward returns a `loss`,
            or any module together with `loss`.
        batch_processor: MMCV's deprecated `f(model, batch, train_mode)`.
        optimizer: one, a dict of them, or None when nothing is trained.
        work_dir: made if missing; None writes nothing.
        logger: a `logging.Logger`; by default the one named `devrun`.
        meta: facts kept in every checkpoint.
        max_iters, max_epochs: at most one of them.
        device: a name (`cpu`, `cuda:1`, `auto`, ...), a mapping with `type` and
            options, or an adapter.
        loss: `f(output, target)` for a plain module.
        seed: of the global random streams, the data order and the randomness of
            samples. None leaves the streams as they are and takes torch's present
            seed for the data.
        optimizer_config: as `register_optimizer_hook` takes it.
        limit_batches: iterations of an epoch, and of an evaluation, at the most.

    Raises:
        ConfigError: an argument cannot be used.
        DeviceUnavailableError: the device is not here.
    """

    def __init__(
        self,
        model: nn.Module,
        batch_processor: Callable[..., Any] | None = None,
        optimizer: Any = None,
        work_dir: str | os.PathLike[str] | None = None,
        logger: logging.Logger | None = None,
        meta: dict[str, Any] | None = None,
        max_iters: int | None = None,
        max_epochs: int | None = None,
        *,
        device: Any = "auto",
        loss: Callable[..., Any] | None = None,
        seed: int | None = None,
        optimizer_config: HookConfig = None,
        limit_batches: int | None = None,
    ) -> None:
        check_arguments(optimizer, logger, meta, max_iters, max_epochs)
        check_limit("limit_batches", limit_batches, 1)
        check_seed(seed)
        self.optimizer = optimizer
        self.batch_processor = batch_processor
        self.loss = loss
        self.model = model
        self.keeps_seed = seed is not None
        self.limit_batches = limit_batches
        self.logger = logger if logger is not None else get_logger()
        self.meta: dict[str, Any] = dict(meta or {})
        self.meta.setdefault("hook_msgs", {})
        self._max_epochs, self._max_iters = max_epochs, max_iters
        self.work_dir = made_work_dir(work_dir)
        self.timestamp = get_time_str()
        self.adapter: DeviceAdapter = resolve_device(device)
        self.adapter.setup(seed)
        # Unseeded, the order still follows what the user may have seeded torch with.
        own = torch.initial_seed() % 2**31 if seed is None else seed
        self.seed = broadcast_object(own)
        self.adapter.data_seed = self.seed
        self._rank, self._world_size = get_dist_info()
        self._table = HookTable(self.adapter.capabilities, self.adapter.name)
        self.policy = UpdatePolicy()
        self.log_buffer = LogBuffer()
        self.outputs: StepOutput = StepOutput(loss=None, log_vars={}, num_samples=0)
        self.data_loader: Any = None
        self.eval_contexts: list[Callable[[BaseRunner], Any]] = []
        self.not_finite: str | None = None
        """What of the weights was not finite at the end of the run."""
        self.run_id = uuid.uuid4().hex
        self._pending_adapter: Mapping[str, Any] = {}
        self._loaders: dict[tuple[int, bool], tuple[Any, Any]] = {}
        self._on_grads: Callable[[], None] | None = None
        self.register_optimizer_hook(optimizer_config)
        if self._world_size > 1:
            self.register_hook(StopTogetherHook())

    @property
    def model(self) -> nn.Module:
        """The user's module; another may take its place until the run is prepared."""
        return self._model

    @model.setter
    def model(self, model: nn.Module) -> None:
        if self._prepared:
            raise ConfigError(
                "the model is on the device already and cannot be replaced; assign "
                "runner.model before run(), or change its parts in place"
            )
        self._step_module = StepModule(model, self.loss, self.batch_processor)
        self._step_model: Any = self._step_module
        self._model, self._model_name = model, type(model).__name__

    @property
    def _own_loop(self) -> bool:
        """Whether a user's subclass has its own `train` or `run_iter`."""
        methods = (type(self).train, type(self).run_iter)
        return any(not method.__module__.startswith("devrun.") for method in methods)

    @abstractmethod
    def train(self, data_loader: Any, **kwargs: Any) -> None:
        """One train phase: an epoch, or an iteration."""

    @abstractmethod
    def val(self, data_loader: Any, **kwargs: Any) -> None:
        """One val phase: an epoch, or an iteration."""

    @abstractmethod
    def run(
        self, data_loaders: Sequence[Any], workflow: Sequence[Any], **kwargs: Any
    ) -> None:
        """Train to the end of the schedule."""

    def current_lr(self) -> list[float] | dict[str, list[float]]:
        """Learning rate of each parameter group (by name for several optimizers)."""
        return self._of_groups(lambda group: group["lr"])

    def current_momentum(self) -> list[float] | dict[str, list[float]]:
        """Momentum, first beta, or 0 of each parameter group."""
        return self._of_groups(
            lambda group: group.get("momentum", group.get("betas", (0,))[0])
        )

    def prepare(self) -> None:
        """Put model and optimizer on the device; `run` does it when it is still due."""
        if self._prepared:
            return
        if self.policy.precision != "fp32":
            wrap_fp16_model(self.model)
        model, self.optimizer = self.adapter.prepare(
            self._step_model, self.optimizer, self.policy
        )
        self._step_model = model
        self._model = self.adapter.unwrap_model(model)
        self._load_adapter(self._pending_adapter)
        for hook in self.adapter.sync_hooks():
            self.register_hook(hook)
        self._prepared = True

    def run_iter(self, data_batch: Any, train_mode: bool, **kwargs: Any) -> None:
        """One step through the adapter; its values go to the log buffer."""
        if kwargs:
            self._step_module.step_kwargs = kwargs
        if train_mode:
            outputs = self.adapter.train_step(
                self._step_model, data_batch, self.optimizer, self._on_grads
            )
            self.adapter_stepped = True
        else:
            outputs = self.adapter.eval_step(self._step_model, data_batch)
        self.outputs = outputs
        items = outputs.get("num_items")
        self.log_buffer.update(
            outputs["log_vars"],
            outputs["num_samples"],
            None if items is None else {"loss": items},
        )

    def eval_step(self, data_batch: Any, mode: str = "val") -> StepOutput:
        """One step without gradients, for hooks; `predict` asks for no loss."""
        self.prepare()
        self.eval_steps += 1
        return self.adapter.eval_step(self._step_model, data_batch, mode)

    def prepare_eval_loader(self, data_loader: Any) -> Any:
        """`data_loader` as the device wants it; the same one each time."""
        return self._prepared_loader(data_loader, training=False)

    @contextlib.contextmanager
    def evaluating(self) -> Iterator[None]:
        """Evaluation mode, with what hooks put in `eval_contexts` (such as EMA)."""
        self.prepare()
        was_training = self._step_model.training
        modes = [(module, module.training) for module in self._step_model.modules()]
        with contextlib.ExitStack() as stack:
            for context in self.eval_contexts:
                stack.enter_context(context(self))
            self._step_model.eval()
            try:
                yield
            finally:
                self._step_model.train(was_training)
                for module, training in modes:  # a frozen BatchNorm stays frozen
                    if module.training != training:
                        module.training = training

    def close(self) -> None:
        """Release the device; safe twice."""
        self.adapter.teardown()

    def _close_loaders(self) -> None:
        """End worker processes that a loader kept for its next epoch."""
        for _, prepared in self._loaders.values():
            if hasattr(prepared, "close"):
                prepared.close()

    def _prepared_loader(self, data_loader: Any, *, training: bool) -> Any:
        self.prepare()
        key = (id(data_loader), training)
        if key not in self._loaders:
            prepared = self.adapter.prepare_dataloader(data_loader, training=training)
            if length(prepared, needed=self._by_epoch) == 0:
                raise ConfigError(
                    "the data loader yields nothing: "
                    f"{describe_loader(data_loader)}; check the data set, its "
                    "path, and drop_last"
                )
            if self.limit_batches is not None:
                prepared = Limited(prepared, self.limit_batches)
            self._loaders[key] = (data_loader, prepared)  # keeps the id alive
            self._loaders[id(prepared), training] = (prepared, prepared)
        return self._loaders[key][1]

    def _of_groups(
        self, read: Callable[[Mapping[str, Any]], float]
    ) -> list[float] | dict[str, list[float]]:
        if self.optimizer is None:
            raise RuntimeError("the runner has no optimizer, so no lr or momentum")
        if isinstance(self.optimizer, dict):
            return {
                name: [read(group) for group in optimizer.param_groups]
                for name, optimizer in self.optimizer.items()
            }
        return [read(group) for group in self.optimizer.param_groups]

    def _prepare_run(self, data_loaders: Sequence[Any], workflow: Any) -> Workflow:
        """Everything ready for `before_run`: loaders, limits, hooks, workflow."""
        if (self._max_epochs if self._by_epoch else self._max_iters) is None:
            name = "max_epochs" if self._by_epoch else "max_iters"
            raise ConfigError(f"{type(self).__name__} needs {name}; none was given")
        flow = Workflow(workflow, data_loaders)
        for mode, _ in flow.flow:
            if not callable(getattr(self, mode, None)):
                raise ConfigError(
                    f"{type(self).__name__} has no method named {mode!r} to run a "
                    "workflow phase; accepted: 'train', 'val'"
                )
        self.prepare()
        flow.loaders = [
            self._prepared_loader(loader, training=mode != "val")
            for loader, (mode, _) in zip(flow.loaders, flow.flow, strict=True)
        ]
        return flow

    def _announce(self, workflow: Workflow, limit: str) -> None:
        where = self.work_dir or "nothing is written"
        self.logger.info(
            "Start running, host: %s, work_dir: %s", get_host_info(), where
        )
        self.logger.info(
            "Hooks will be executed in the following order:\n%s", self.get_hook_info()
        )
        self.logger.info("workflow: %s, max: %s", workflow.flow, limit)

    def _run_phases(
        self, flow: Workflow, finished: Callable[[], bool], **kwargs: Any
    ) -> None:
        """Call `before_run`, the phases in turn, and `after_run`."""
        self._workflow = flow
        self._restore_position(flow)
        stage = self._table.calls["after_backward"]
        self._on_grads = (lambda: self.call_hook("after_backward")) if stage else None
        try:
            self.call_hook("before_run")
            self._restore_position(flow)  # a hook may have resumed in before_run
            self._restore_hooks()
            self._table.refresh()  # hooks may narrow their stages in before_run
            if finished():
                self.logger.warning(
                    "nothing is left to train: %d epochs and %d iterations are done; "
                    "raise %s to go on",
                    self._epoch,
                    self._iter,
                    "max_epochs" if self._by_epoch else "max_iters",
                )
            self._before_phases()
            self._run_to_the_end(flow, finished, **kwargs)
            self._after_phases()
            self.adapter.sync_to_host(self._step_model)
            self.adapter.check_finite(self._step_model)
            self._judge_the_result()
            self.call_hook("after_run")
            self.finish_saving()
        except BaseException as error:
            self._table.tell(self, error)
            if (explained := self._explained(error)) is not None:
                raise explained from error
            raise
        finally:
            self._close_loaders()

    def _judge_the_result(self) -> None:
        """Weights that the policy let go bad are told of; none trained is an error."""
        left_out = self.adapter.skipped_updates
        if left_out == self._iter >= FEW_UPDATES:
            what = f"all {left_out} updates were left out: nothing has been trained"
            if self.policy.nonfinite not in ("warn", "ignore"):
                raise DivergedError(f"{what}; the warnings above say why")
            self.logger.warning("%s", what)
        self.not_finite = not_finite(self._model)
        if self.not_finite is not None:
            self.logger.warning(
                "%s has nan or infinite values at the end of this run, and so has what "
                "was saved since it got them: nonfinite is %r",
                self.not_finite,
                self.policy.nonfinite,
            )

    def _before_phases(self) -> None:
        """What a loop does once between `before_run` and the first phase."""

    def _after_phases(self) -> None:
        """What a loop does once between the last phase and `after_run`."""

    def _explained(self, error: BaseException) -> BaseException | None:
        """`error` in words, when the loader knows better, and where the run was."""
        explain = getattr(self.data_loader, "explain", None)
        known = explain(error) if explain is not None else None
        known = known or lost_peer(error)
        told = error if known is None else known
        if isinstance(told, (DivergedError, DeviceMemoryError, DataError, HangError)):
            place = f"(epoch {self._epoch + 1}, iteration {self._iter + 1})"
            told.args = (f"{told} {place}",)
        return known
