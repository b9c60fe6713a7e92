"""`EagerAdapter`: devices on which PyTorch runs operation by operation.

A subclass says what is special about its hardware: its name, whether it is here, its
`torch.device`, its memory and random state. The update is the same for all of them.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from devrun.data.prepared import PreparedLoader
from devrun.data.spec import LoaderSpec
from devrun.devices.base import DataShare, DeviceAdapter
from devrun.devices.compiling import check_compile, compile_in_place
from devrun.devices.explain import STEP_FAILURES, raise_explained
from devrun.devices.fast import can_fuse, hasten
from devrun.devices.finite import FiniteGuard
from devrun.devices.gradients import (
    clip_function,
    largest_gradient,
    step_function,
    zero_function,
)
from devrun.devices.options import EagerOptions, parse_options
from devrun.devices.ownership import (
    UpdateWatch,
    average_before_steps,
    check_policy,
    decide_owner,
    likely_owner,
    may_differ,
)
from devrun.devices.placement import (
    ForwardDone,
    bring_inputs,
    move_together,
    moved,
    step_module_of,
    user_module_of,
)
from devrun.devices.precision import LossScaler, autocast_for
from devrun.devices.seeding import Determinism, seed_streams
from devrun.devices.splitting import splitter_for
from devrun.devices.update import (
    EarlierRuns,
    Unreached,
    UpdateRule,
    check_closure,
    needs_closure,
)
from devrun.dist import close_dist, get_dist_info, init_dist, launched
from devrun.errors import DeviceUnavailableError
from devrun.models.calls import items_in
from devrun.models.step_module import StepModule
from devrun.parallel.mesh import Mesh
from devrun.parallel.strategy import optimizers_in, share_weights, strategy_for
from devrun.step import Capability, MicroBatches, StepOutput, UpdatePolicy

logger = logging.getLogger("devrun")


class EagerAdapter(DeviceAdapter):
    """Common base of the CPU, CUDA and `torch.accelerator` adapters."""

    capabilities = frozenset(Capability)
    options_type: ClassVar[type[EagerOptions]] = EagerOptions
    dist_backend: ClassVar[str | None] = None
    """Of `torch.distributed`, unless the options name another."""
    host_shared: ClassVar[bool] = False
    """Whether the host reads a tensor's value without waiting for a queue."""

    def __init__(self, options: EagerOptions | None = None) -> None:
        self.options = options if options is not None else self.options_type()
        self.device = torch.device("cpu")
        """Where tensors go; final after `setup`."""
        self.update = UpdateRule()
        """How an update is done; made by `prepare`, and done by another owner if the
        first step shows that."""
        self._undecided = False
        """Whether the first step may still show another owner."""
        self._earlier = EarlierRuns()
        self._policy = UpdatePolicy()
        self._seed = 0
        self._joined = False
        self._determinism = Determinism()
        self._handles: list[Any] = []
        self._evaluated: tuple[Any, str] = (None, "val")

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
            limit = self.options.timeout
            given = {} if limit is None else {"timeout": limit}
            self._joined = init_dist("pytorch", backend, **given) or self._joined
        if seed is not None:
            self._seed = seed
            seed_streams(seed, get_dist_info()[0])

    @functools.cached_property
    def mesh(self) -> Mesh:
        """Which process does what; there from `setup` on."""
        return Mesh(self.parallel, self.device.type)

    @property
    def data_share(self) -> DataShare:
        mesh = self.mesh
        return DataShare(mesh.data_rank, mesh.data_size, mesh.tells_results)

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
        strategy = strategy_for(
            self.parallel,
            self.mesh,
            self.device,
            self.options.ddp_defaults,
            pins=not self.host_shared,
            rng=self,
        )
        if self.options.performance is not None:
            policy = hasten(self, model, optimizer, policy, divided=strategy.divided)
        strategy.check(policy, model, optimizer)
        check_compile(self.options, strategy)
        self._policy = policy
        model.counts_items = model.counts_items and policy.mean_over != "samples"
        model.counts_labels = policy.mean_over == "labels"
        model.optimizer = optimizer = self.placed(model, optimizer)
        if self.device.type != "cpu":
            self._handles.append(bring_inputs(model.module, self.device))
        owner = likely_owner(policy, optimizer)
        closure = policy.owner != "hook" and needs_closure(optimizer)
        self.update = UpdateRule(strategy=strategy)
        self.update = self.update_rule(policy, model).by(owner, closure=closure)
        if closure and owner == "adapter":
            check_closure(self.update)
        self._undecided = may_differ(policy, model, owner)
        self.load_state_dict(self._earlier.state)  # a resume may come before prepare
        self._settle_owner(owner, optimizer)
        if owner == "model" and not strategy.divided:
            share_weights(model)
            return model, optimizer
        splitter = self.update.splitter
        by_hand = splitter is not None and not splitter.fixed
        wrapped = strategy.apply(model, optimizer, by_hand=by_hand)
        self._evaluated = (wrapped, "val")
        return wrapped, optimizer

    def switches(self, model: nn.Module, optimizer: Any) -> dict[str, Any]:
        """What `performance: fast` means here for the model; a subclass adds its own.

        Keys are `precision`, `fused` and those of the options.
        """
        return {"fused": True} if can_fuse(optimizer, model, self.device) else {}

    def _settle_owner(self, owner: str, optimizer: Any) -> None:
        """What has to be done for who updates: `adapter`, `model` or `hook`.

        Called at the end of `prepare`, and again if the first step shows another one.
        """
        if owner == "model":
            self._handles += average_before_steps(optimizer)
        around = self.update.around_steps
        if owner != "adapter" and around is not None:
            for each in optimizers_in(optimizer):
                self._handles += around(each)

    def prepare_dataloader(
        self, loader: Any, *, training: bool, seed: int | None = None
    ) -> PreparedLoader:
        if isinstance(loader, PreparedLoader):
            return loader
        rank, size, _ = self.data_share
        how = dict(self.transfers(self.to_device))
        spec = LoaderSpec.of(
            loader,
            seed=self._seed if seed is None else seed,
            rank=rank,
            world_size=size,
            training=training,
            pin_memory=how.pop("pin_memory", None),
        )
        in_step = self.update.strategy.divided and not training
        return PreparedLoader(
            spec,
            accumulate=self._policy.accumulate if training else 1,
            in_step=self._in_step if in_step else None,
            **how,
        )

    def train_step(
        self,
        model: Any,
        batch: Any,
        optimizer: Any,
        on_grads: Callable[[], None] | None = None,
    ) -> StepOutput:
        try:
            if self._undecided:
                model = self._watched(model, batch, optimizer)
                self._undecided = False
            return self.update.step(model, batch, optimizer, on_grads)
        except STEP_FAILURES as error:
            raise_explained(error, batch, model, self)
            raise

    def eval_step(self, model: Any, batch: Any, mode: str = "val") -> StepOutput:
        # The bare module: DDP would wait for ranks whose share has fewer batches. Not
        # inference_mode: users keep predictions, which then never enter autograd again.
        self._evaluated = (model, mode)
        try:
            with torch.no_grad(), self.update.autocast or nullcontext():
                step = step_module_of(model)
                outputs = StepOutput(step(self.to_device(batch), mode))
            self.update.strategy.after_eval()
            return outputs
        except STEP_FAILURES as error:
            raise_explained(error, batch, model, self)
            raise

    def _in_step(self, batches: Iterator[Any]) -> Iterator[Any]:
        """An evaluation's batches, with steps beside those of the other processes."""

        def idle(batch: Any) -> None:
            model, mode = self._evaluated
            self.eval_step(model, batch, mode)

        return iter(self.update.strategy.in_step(batches, idle))

    def unwrap_model(self, model: Any) -> nn.Module:
        return user_module_of(model)

    def model_state(self, model: Any, *, full: bool = True) -> dict[str, Any]:
        state = super().model_state(model)
        return self.update.strategy.model_state(state, full=full)

    def optimizer_state(
        self, model: Any, optimizer: Any, *, full: bool = True
    ) -> dict[str, Any]:
        tree = super().optimizer_state(model, optimizer)
        return self.update.strategy.optimizer_state(tree, full=full)

    def load_optimizer_state(
        self, model: Any, optimizer: Any, state: Any
    ) -> Callable[[], None]:
        load = super().load_optimizer_state(model, optimizer, state)

        def both() -> None:
            load()
            self.update.strategy.take_optimizer_state(model, optimizer)

        return both

    def check_finite(self, model: Any = None) -> None:
        update = self.update
        if update.scaler is not None:
            update.scaler.flush()
        if update.guard is not None:
            update.guard.flush(None if model is None else user_module_of(model))

    def stats(self) -> dict[str, float]:
        skipped = self._earlier.skipped + self.update.skipped
        return {"skipped_updates": skipped} if skipped else {}

    def state_dict(self) -> dict[str, Any]:
        return self._earlier.continued(self.update, decided=not self._undecided)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._earlier.take(self.update, state)

    def teardown(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles = []
        self.update, self._undecided = UpdateRule(), False
        self._evaluated = (None, "val")
        vars(self).pop("mesh", None)
        self._determinism.undo()
        if self._joined:
            self._joined = False
            close_dist()

    def placed(self, model: StepModule, optimizer: Any) -> Any:
        """Put both on the device; the optimizer to use from now on."""
        move_together(model, optimizer, self.device, self.options)
        compile_in_place(model.module, self.options.compile)
        return optimizer

    def to_device(self, batch: Any) -> Any:
        """The batch, in its own structure, with its tensors on the device."""
        return moved(batch, self.device, self.options)

    def transfers(self, move: Callable[[Any], Any]) -> dict[str, Any]:
        """How `PreparedLoader` brings a batch here; `move` does it for one.

        `pin_memory`: whether the loader pins its batches, which is else left as it is.
        """
        return {"transfer": move}

    def update_rule(self, policy: UpdatePolicy, model: StepModule) -> UpdateRule:
        """The update that `policy` asks for; `model` is placed already.

        A subclass changes what its device does in another way.
        """
        shared, kind = self.host_shared, self.device.type
        strategy = self.update.strategy
        guard = FiniteGuard(policy.nonfinite, host_shared=shared)
        update = UpdateRule(
            host_shared=shared,
            world=get_dist_info()[1],
            strategy=strategy,
            zero=zero_function(model.optimizer),
            advance=step_function(model.optimizer),
            autocast=None if strategy.casts else autocast_for(policy.precision, kind),
            splitter=splitter_for(policy, self),
            count_items=functools.partial(items_in, model),
            guard=None if policy.nonfinite == "ignore" else guard,
        )
        if policy.owner == "hook":  # it clips, scales and accumulates by itself
            return update
        clip, measure = clip_function(policy, host_shared=shared), None
        if clip is not None:
            clip = strategy.clip_function(policy) or clip
        scaler = None
        if policy.precision == "fp16":
            scaler = LossScaler(policy, kind, host_shared=shared, give_up=guard.give_up)
        if policy.nonfinite == "skip" and scaler is None:  # it skips them itself
            guard.judges_gradients = True
            if policy.grad_clip is None or "max_norm" not in policy.grad_clip:
                measure = strategy.largest_gradient() or largest_gradient
        unreached = Unreached(model.module) if policy.detect_anomalous_params else None
        return replace(
            update,
            clip=clip,
            measure=measure,
            scaler=scaler,
            unreached=unreached,
        )

    def _watched(self, model: Any, batch: Any, optimizer: Any) -> Any:
        """Do the forward pass of the first micro-batch, which shows who updates.

        It runs on the bare module, which stands for the model in this update, with
        gradients averaged by hand: DDP cannot wrap a forward pass in which the model
        itself calls backward. Where the owner is known with DDP, that is there from
        the first update on, so that a resumed run has the bits of an unbroken one.
        """
        inner = step_module_of(model)
        known = (self._policy.owner, self._earlier.state.get("owner"))
        if isinstance(model, DistributedDataParallel) and "adapter" in known:
            return model
        part = batch[0] if isinstance(batch, MicroBatches) else batch
        self.update.strategy.begin()
        with UpdateWatch(inner, optimizer, self.update.strategy.divided) as watch:
            outputs = self.update.forward(inner, part)
        owner = decide_owner(self._policy, watch, optimizer, inner)
        if owner != self.update.owner:
            self.update = self.update.by(owner)
            self._settle_owner(owner, optimizer)
        return ForwardDone(inner, outputs)
