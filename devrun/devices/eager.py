"""`EagerAdapter`: devices on which PyTorch runs operation by operation.

A subclass says what is special about its hardware: its name, whether it is here, its
`torch.device`, its memory and random state. The update is the same for all of them.
"""

from __future__ import annotations

import contextlib
import functools
import logging
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from devrun.data.batch import to_device
from devrun.data.prepared import PreparedLoader
from devrun.data.spec import LoaderSpec
from devrun.devices.base import DeviceAdapter
from devrun.devices.explain import STEP_FAILURES, explain
from devrun.devices.finite import FiniteGuard
from devrun.devices.gradients import (
    call_zero_grad,
    clip_function,
    largest_gradient,
    zero_function,
)
from devrun.devices.options import EagerOptions, parse_options
from devrun.devices.overflow import Overflows
from devrun.devices.ownership import (
    UpdateWatch,
    average_before_steps,
    check_policy,
    decide_owner,
)
from devrun.devices.placement import (
    compile_in_place,
    place,
    share_weights,
    step_module_of,
    user_module_of,
    wrap_ddp,
)
from devrun.devices.precision import autocast_for, loss_scaler_for
from devrun.devices.seeding import Determinism, seed_streams
from devrun.devices.splitting import splitter_for
from devrun.devices.update import (
    StepFunction,
    UpdatePlan,
    checked_loss,
    closure_step,
    forward_step,
    full_step,
    needs_closure,
    plain_step,
)
from devrun.dist import allreduce_grads, close_dist, get_dist_info, init_dist, launched
from devrun.errors import DeviceUnavailableError
from devrun.models.items import items_in
from devrun.models.step_module import StepModule
from devrun.step import Capability, MicroBatches, StepOutput, UpdatePolicy
from devrun.tensors import map_tensors

__all__ = ["EagerAdapter"]

logger = logging.getLogger("devrun")


class EagerAdapter(DeviceAdapter):
    """Common base of the CPU, CUDA and `torch.accelerator` adapters."""

    capabilities = frozenset(Capability)
    options_type: ClassVar[type[EagerOptions]] = EagerOptions
    host_shared: ClassVar[bool] = False
    """Whether the host reads a tensor's value without waiting for a queue."""
    flops_obstacle: str | None = None

    def __init__(self, options: EagerOptions | None = None) -> None:
        self.options = options if options is not None else self.options_type()
        self.device = torch.device("cpu")
        """Where tensors go; final after `setup`."""
        self._seed = 0
        self._joined = False
        self._determinism = Determinism()
        self._policy = UpdatePolicy()
        self._plan = UpdatePlan()
        self._step: StepFunction = _not_prepared
        self._owner: str | None = None
        self._saved_state: Mapping[str, Any] = {}
        self._skipped_before = 0
        self._handles: list[Any] = []

    @classmethod
    def from_config(cls, cfg: Mapping[str, Any]) -> EagerAdapter:
        return cls(parse_options(cls.options_type, cfg, cls.name))

    def setup(self, seed: int | None) -> None:
        # an emulated device is there by being asked for
        reason = None if self.emulated else self.unavailable_reason()
        if reason is not None:
            raise DeviceUnavailableError(f"device {self.name!r} is not here: {reason}")
        self.device = self.claim()
        if self.options.deterministic:
            self._determinism.apply()
        if launched():
            backend = self.options.backend or self.dist_backend
            timeout = self.options.timeout
            limit = {} if timeout is None else {"timeout": timeout}
            self._joined = init_dist("pytorch", backend, **limit) or self._joined
        if seed is not None:
            self._seed = seed
            seed_streams(seed, get_dist_info()[0])

    def claim(self) -> torch.device:
        """The device of this process, where tensors go; `setup` asks once.

        A subclass overrides it, and makes the device the current one too.

        Raises:
            DeviceUnavailableError: it is not here, or not free.
        """
        return torch.device("cpu")

    def prepare(
        self, model: nn.Module, optimizer: Any, policy: UpdatePolicy
    ) -> tuple[Any, Any]:
        check_policy(policy, optimizer, self.name)
        if not isinstance(model, StepModule):
            model = StepModule(model)
        self._policy = policy
        model.counts_items = model.counts_items and policy.mean_over == "targets"
        model.optimizer = optimizer = self.placed(model, optimizer)
        self._plan = self._planned(policy, model)
        prepared: nn.Module = model
        if policy.owner == "model":
            share_weights(model)
            self._handles = average_before_steps(optimizer)
        else:
            prepared = self._wrapped(model)
        if policy.owner == "hook":
            self._step = forward_step(self._plan, keep_graph=True)
        elif policy.owner == "model":
            self._step = self._model_step()
        else:
            self._step = self._first_step
        return prepared, optimizer

    def prepare_dataloader(
        self, loader: Any, *, training: bool, seed: int | None = None
    ) -> PreparedLoader:
        if isinstance(loader, PreparedLoader):
            return loader
        rank, world_size = get_dist_info()
        spec = LoaderSpec.of(
            loader,
            seed=self._seed if seed is None else seed,
            rank=rank,
            world_size=world_size,
            training=training,
            pin_memory=self.pin_memory(loader),
        )
        accumulate = self._policy.accumulate if training else 1
        return PreparedLoader(spec, accumulate=accumulate, **self.transfers())

    def train_step(
        self,
        model: Any,
        batch: Any,
        optimizer: Any,
        on_grads: Callable[[], None] | None = None,
    ) -> StepOutput:
        try:
            return self._step(model, batch, optimizer, on_grads)
        except STEP_FAILURES as error:
            line = explain(error, batch, model, str(self.device), self.memory_stats)
            if line is None:
                raise
            raise line from error

    def eval_step(self, model: Any, batch: Any, mode: str = "val") -> StepOutput:
        # The bare module: DDP would wait for ranks whose share has fewer batches.
        # Not inference_mode: its tensors may never enter autograd again, and users
        # keep predictions (distillation, hard negatives) for the next train step.
        try:
            with torch.no_grad(), self._plan.autocast or contextlib.nullcontext():
                return StepOutput(step_module_of(model)(self.to_device(batch), mode))
        except STEP_FAILURES as error:
            line = explain(error, batch, model, str(self.device), self.memory_stats)
            if line is None:
                raise
            raise line from error

    def unwrap_model(self, model: Any) -> nn.Module:
        return user_module_of(model)

    def check_finite(self, model: Any = None) -> None:
        if self._plan.overflows is not None:
            self._plan.overflows.flush()
        if self._plan.guard is not None:
            self._plan.guard.flush(None if model is None else user_module_of(model))
        self.skipped_updates = self._skipped_before + self._plan.skipped

    def profiler_activities(self) -> list[Any]:
        return [torch.profiler.ProfilerActivity.CPU]

    def state_dict(self) -> dict[str, Any]:
        state = dict(self._saved_state)
        if self._owner is not None:
            state["owner"] = self._owner
        if self._plan.scaler is not None:
            state["scaler"] = self._plan.scaler.grad_scaler.state_dict()
        for name, part in self._plan.stateful():
            state[name] = part.state_dict()
        if skipped := self._skipped_before + self._plan.skipped:
            state["skipped_updates"] = skipped
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        # resume may come before prepare; the scaler takes it then
        self._saved_state = dict(state)
        # also by a rollback, in the midst of counting
        self._skipped_before = state.get("skipped_updates", 0) - self._plan.skipped
        self._load_scaler()

    def teardown(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles = []
        self._step = _not_prepared
        self._plan = UpdatePlan()
        self._determinism.undo()
        if self._joined:
            self._joined = False
            close_dist()

    def placed(self, model: StepModule, optimizer: Any) -> Any:
        """Put both on the device; the optimizer to use from now on."""
        place(model, optimizer, self.device, self.options)
        compile_in_place(model.module, self.options.compile)
        return optimizer

    def to_device(self, batch: Any) -> Any:
        """The batch, in its own structure, with its tensors on the device."""
        batch = to_device(batch, self.device, non_blocking=True)
        if self.options.channels_last:
            batch = map_tensors(_channels_last, batch)
        return batch

    def _wrapped(self, model: StepModule) -> nn.Module:
        if self._plan.splitter is None:
            return wrap_ddp(model, self.device, self.options)
        # a rank that runs out of memory must be able to tell the others before they
        # exchange gradients, which DDP does in the middle of a backward pass
        share_weights(model)
        return model

    def transfers(self) -> dict[str, Any]:
        """How `PreparedLoader` brings a batch here."""
        return {"transfer": self.to_device}

    def pin_memory(self, loader: Any) -> bool | None:
        """Whether the loader should pin its batches; None leaves it as it is."""
        return None

    def _planned(self, policy: UpdatePolicy, model: StepModule) -> UpdatePlan:
        guard = FiniteGuard(
            policy.nonfinite, host_shared=self.host_shared, spike=policy.spike
        )
        overflows = Overflows(host_shared=self.host_shared, give_up=guard.give_up)
        # a user's own hook clips, scales and accumulates by itself
        own = policy.owner == "hook"
        plan = UpdatePlan(
            guard=None if policy.nonfinite == "ignore" else guard,
            zero=call_zero_grad if own else zero_function(model.optimizer),
            clip=None if own else clip_function(policy, host_shared=self.host_shared),
            overflows=overflows if policy.precision == "fp16" else None,
            autocast=autocast_for(policy.precision, self.device.type),
            scaler=None
            if own
            else loss_scaler_for(policy, self.device.type, overflows),
            watched=model.module if policy.detect_anomalous_params else None,
            accumulate=policy.accumulate,
            count_items=functools.partial(items_in, model),
            splitter=splitter_for(policy, self),
        )
        if plan.overflows is not None:
            self.note_overflow = plan.overflows.note
        if policy.nonfinite == "skip" and plan.scaler is None:  # it skips them itself
            guard.judges_gradients = True
            if policy.grad_clip is None or "max_norm" not in policy.grad_clip:
                plan.measure = largest_gradient()
        self._plan = plan
        self._load_scaler()
        return plan

    def _load_scaler(self) -> None:
        saved = self._saved_state.get("scaler")
        if saved and self._plan.scaler is not None:
            self._plan.scaler.grad_scaler.load_state_dict(dict(saved))
        for name, part in self._plan.stateful():
            if name in self._saved_state:
                part.load_state_dict(self._saved_state[name])

    def _first_step(
        self, model: Any, batch: Any, optimizer: Any, on_grads: Any
    ) -> StepOutput:
        """The first update finds out who does it, and picks the function for the rest.

        It runs on the bare module with gradients averaged by hand: DDP cannot wrap a
        forward pass in which the model itself calls backward.
        """
        inner: StepModule = step_module_of(model)
        known = isinstance(model, DistributedDataParallel) and self._adapter_owns()
        if known or self._plan.splitter is not None:
            # Known beforehand: DDP from the first update on, as a run that was never
            # stopped does at this point, so that a resumed one has the same bits.
            self._owner = "adapter"
            self._step = self._adapter_step(model, optimizer)
            return self._step(model, batch, optimizer, on_grads)
        parts = batch if isinstance(batch, MicroBatches) else MicroBatches([batch])
        autocast = self._plan.autocast or contextlib.nullcontext()
        with UpdateWatch(inner, optimizer) as watch, autocast:
            outputs = inner(parts[0], "train")
        self._owner = decide_owner(self._policy, watch, optimizer, inner)
        if self._owner == "model":
            self._handles = average_before_steps(optimizer)
            self._step = self._model_step()
            return forward_step(self._plan, keep_graph=False)(
                _Replay(inner, outputs), parts[0], optimizer, on_grads
            )
        checked_loss(inner, outputs["loss"])
        self._step = run = self._adapter_step(model, optimizer)
        if isinstance(model, DistributedDataParallel):
            reduce = functools.partial(allreduce_grads, list(inner.parameters()))
            first = closure_step if needs_closure(optimizer) else full_step
            run = first(self._plan, reduce)
        return run(_Replay(inner, outputs), batch, optimizer, on_grads)

    def _adapter_owns(self) -> bool:
        known = (self._policy.owner, self._saved_state.get("owner"))
        return known[0] == "adapter" or known == ("auto", "adapter")

    def _adapter_step(self, model: Any, optimizer: Any) -> StepFunction:
        if self._plan.splitter is not None and get_dist_info()[1] > 1:
            params = list(step_module_of(model).parameters())
            return full_step(self._plan, functools.partial(allreduce_grads, params))
        if needs_closure(optimizer):
            return closure_step(self._plan)
        if self._plan.is_plain and not isinstance(model, DistributedDataParallel):
            return plain_step(self._plan)
        return full_step(self._plan)

    def _model_step(self) -> StepFunction:
        forward = forward_step(self._plan, keep_graph=False)

        def step(model: Any, batch: Any, optimizer: Any, on_grads: Any) -> StepOutput:
            return forward(step_module_of(model), batch, optimizer, on_grads)

        return step


class _Replay:
    """Stands for the model in the first update: its first forward is already done."""

    def __init__(self, model: StepModule, outputs: dict[str, Any]) -> None:
        self.model_name = model.model_name
        self._model = model
        self._outputs: dict[str, Any] | None = outputs

    def run(self, _: Any, batch: Any, mode: str) -> dict[str, Any]:
        """As `StepModule.run` is called."""
        return self(batch, mode)

    def __call__(self, batch: Any, mode: str) -> dict[str, Any]:
        outputs, self._outputs = self._outputs, None
        if outputs is not None:
            return outputs
        again: dict[str, Any] = self._model(batch, mode)
        return again


def _channels_last(tensor: Tensor) -> Tensor:
    """An image tensor (4-d, floating) in that memory format."""
    if tensor.dim() == 4 and tensor.is_floating_point():
        return tensor.contiguous(memory_format=torch.channels_last)
    return tensor


def _not_prepared(
    model: Any, batch: Any, optimizer: Any, on_grads: Callable[[], None] | None
) -> StepOutput:
    raise RuntimeError("the adapter is not prepared: call prepare(model, ...) first")
