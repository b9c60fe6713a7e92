"""`IPUAdapter`: a whole update is one call of a compiled graph."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from devrun.data.prepared import PreparedLoader
from devrun.devices.base import DeviceAdapter, DeviceInfo
from devrun.devices.finite import FiniteGuard
from devrun.devices.ipu.batch import Flat, flatten, rebuild, rows_of, whole
from devrun.devices.ipu.data import prepared_loader
from devrun.devices.ipu.evaluation import evaluate, on_host
from devrun.devices.ipu.executors import Executor, Executors
from devrun.devices.ipu.optimizer import DeviceOptimizer, check_policy
from devrun.devices.ipu.options import (
    IPUSettings,
    inference_options,
    micro_batches,
    parse_settings,
    training_options,
)
from devrun.devices.ipu.sdk import load, missing
from devrun.devices.ipu.split import (
    apply_split,
    recompute,
    remove_recompute,
    remove_split,
    split_of,
)
from devrun.devices.ipu.step import Call, DeviceStep, means
from devrun.devices.seeding import seed_streams
from devrun.dist import launched
from devrun.errors import ConfigError, UnsupportedFeatureError
from devrun.models.step_module import StepModule
from devrun.step import Capability, StepOutput, UpdatePolicy

if TYPE_CHECKING:
    from devrun.probes.probe import Probes

logger = logging.getLogger("devrun")


class IPUAdapter(DeviceAdapter):
    """Graphcore IPUs through PopTorch, or its emulator when that was asked for.

    The weights live on the IPUs; `sync_to_host` fetches them when something on the host
    reads them. The optimizer's state is fetched when its `state_dict` is asked for, and
    sent after `load_state_dict`; so no update pays for either.
    """

    name = "ipu"
    capabilities = frozenset({Capability.FINITE_CHECKS})

    def __init__(self, settings: IPUSettings, sdk: Any) -> None:
        self.settings, self.sdk = settings, sdk
        self.emulated = settings.emulate
        self._announced = False
        self._policy = UpdatePolicy()
        self._guard: FiniteGuard | None = None
        self._options: Any = None
        self._eval_options: Any = None
        self.executors: Executors | None = None
        self._optimizer: DeviceOptimizer | None = None
        self._placed: nn.Module | None = None
        """The user's module, with the blocks and checkpoints of the settings."""
        self._rng: Sequence[int] | None = None

    @classmethod
    def unavailable_reason(cls) -> str | None:
        return missing()

    @classmethod
    def probes(cls) -> Probes:
        from devrun.devices.ipu.probes import PROBES

        return PROBES

    @classmethod
    def list_devices(cls) -> Sequence[DeviceInfo]:
        if missing() is not None:
            return ()
        sdk = load(False)
        count = 1
        while count < 64 and sdk.ipuHardwareIsAvailable(count * 2):
            count *= 2
        one = DeviceInfo(
            f"IPU, generation {sdk.ipuHardwareVersion()}", None, ("fp32", "fp16")
        )
        return (one,) * count

    @classmethod
    def from_config(cls, cfg: Mapping[str, Any]) -> IPUAdapter:
        settings = parse_settings(cfg)
        sdk = load(settings.emulate)
        # here, where a caller knows the line of the section, for what is wrong in it
        training_options(sdk, settings, UpdatePolicy(), 0)
        inference_options(sdk, settings, 0)
        return cls(settings, sdk)

    def setup(self, seed: int | None) -> None:
        if launched() or any(name.startswith("POPDIST_") for name in os.environ):
            raise UnsupportedFeatureError(
                "an IPU run is one process: take --ipu-replicas N instead of a "
                "launcher (or poprun), which gives N copies of the model inside "
                "PopTorch"
            )
        if self.emulated and not self._announced:
            self._announced = True
            logger.warning(
                "emulated IPUs: PopTorch's interface on the CPU; results are those of "
                "plain PyTorch, and nothing is said about speed or memory"
            )
        if self.settings.performance is not None:
            logger.info(
                "performance: fast changes nothing on an IPU: one compiled graph"
            )
        if seed is not None:
            seed_streams(seed, 0)

    def prepare(
        self, model: nn.Module, optimizer: Any, policy: UpdatePolicy
    ) -> tuple[Any, Any]:
        self.teardown()
        check_policy(policy, optimizer)
        step = model if isinstance(model, StepModule) else StepModule(model)
        step.optimizer = optimizer
        self._policy = policy
        nonfinite = policy.nonfinite
        # results are on the host already when a call returns
        guard = FiniteGuard(nonfinite, host_shared=True)
        self._guard = None if nonfinite == "ignore" else guard
        self._place(step.module)
        self._make_options(torch.initial_seed())
        if policy.precision == "fp16":
            step.half()
        module = DeviceStep(step, self.sdk)
        self.executors = Executors(self.sdk, module)
        if optimizer is not None:
            self._optimizer = DeviceOptimizer(self.sdk, optimizer, module, policy)
        return step, optimizer

    def prepare_dataloader(
        self, loader: Any, *, training: bool, seed: int | None = None
    ) -> PreparedLoader:
        if isinstance(loader, PreparedLoader):
            return loader
        executors = self._prepared()
        seed = torch.initial_seed() % 2**31 if seed is None else seed
        if training and executors.trainer is None:
            self._make_options(seed)  # whose random numbers follow the run's seed
        options = self._options if training else self._eval_options
        return prepared_loader(self.sdk, options, loader, seed=seed, training=training)

    def train_step(
        self,
        model: Any,
        batch: Any,
        optimizer: Any,
        on_grads: Callable[[], None] | None = None,
    ) -> StepOutput:
        if on_grads is not None:
            raise UnsupportedFeatureError(
                "a hook overrides after_backward, but on an IPU gradients never come "
                "to the host: remove the hook"
            )
        executors, twin = self._training()
        flat = self.flat(batch, "train")
        trainer = executors.trainer
        if trainer is not None and executors.outdated(trainer):
            self._recompile(trainer)
            trainer = None
        if trainer is None:
            twin.changed()
            trainer = self._compile_training(flat)
        else:
            trainer.check(flat)
            if twin.changed():
                executors.set_optimizer(twin.twin)
        twin.upload()
        outputs = executors.run(trainer, flat.tensors)
        twin.ran()
        return self._trained(trainer.call, outputs)

    def eval_step(self, model: Any, batch: Any, mode: str = "val") -> StepOutput:
        executors = self._prepared()
        step = executors.module.step
        flat = self.flat(batch, mode)
        if self.settings.evaluate_on == "host":
            executors.to_host()
            return on_host(step, rebuild(flat.template, flat.tensors), mode)
        rows = rows_of(flat, 1)
        fitting = [
            one
            for one in executors.evaluators
            if one.call.mode == mode and one.rows >= rows
            # of a generation each bucket has a graph, and decoding one
            if mode != "generate" or one.takes(flat)
        ]
        if fitting:
            executor = min(fitting, key=lambda one: one.rows)
            executor.check(flat, any_rows=True)
        else:
            executor = self._compile_evaluation(step, flat, rows, mode)
        return evaluate(executor, flat, rows, executors.run)

    def check_finite(self, model: Any = None) -> None:
        if self._guard is None:
            return
        # at log points the host's weights are old; fetching them would cost an update
        current = self.executors is None or self.executors.host_is_current
        self._guard.flush(self.unwrap_model(model) if model and current else None)

    def unwrap_model(self, model: Any) -> nn.Module:
        module: nn.Module = model.module if isinstance(model, StepModule) else model
        return module

    def sync_to_host(self, model: Any) -> None:
        if self.executors is not None:
            self.executors.to_host()

    def sync_to_device(self, model: Any) -> None:
        if self.executors is not None:
            self.executors.to_device()

    def state_dict(self) -> dict[str, Any]:
        state: dict[str, Any] = {}
        if self._optimizer is not None and (own := self._optimizer.scalars()):
            state["optimizer"] = own
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if self._optimizer is not None:
            self._optimizer.load_scalars(state.get("optimizer", {}))

    def model_state(self, model: Any, *, full: bool = True) -> dict[str, Any]:
        """Half weights as float32, which holds the same values, so that any device
        can load them."""
        return {
            name: value.float() if value.dtype == torch.float16 else value
            for name, value in super().model_state(model).items()
        }

    def rng_state(self) -> dict[str, Any]:
        trainer = None if self.executors is None else self.executors.trainer
        state = self._rng if trainer is None else list(trainer.inner.rng_state)
        return {} if state is None else {"training": list(state)}

    def set_rng_state(self, state: Mapping[str, Any]) -> None:
        self._rng = state.get("training")
        trainer = None if self.executors is None else self.executors.trainer
        if trainer is not None and self._rng is not None:
            trainer.inner.rng_state = list(self._rng)

    def teardown(self) -> None:
        if self._optimizer is not None:
            self._optimizer.close()
        if self.executors is not None:
            self.executors.close()
        if self._placed is not None:
            remove_split(self._placed)
            remove_recompute(self._placed)
        self.executors = self._optimizer = self._placed = None

    def _make_options(self, seed: int) -> None:
        blocks = [] if self._placed is None else split_of(self._placed)
        # the model's own code may begin blocks where the settings do not
        ipus = 1 + max(ipu for _, ipu in blocks) if blocks else None
        settings, policy = self.settings, self._policy
        self._options = training_options(self.sdk, settings, policy, seed, ipus)
        self._eval_options = inference_options(self.sdk, settings, seed)

    def _place(self, module: nn.Module) -> None:
        """Put the blocks of the split and the checkpoints on the user's module."""
        settings, self._placed = self.settings, module
        recompute(module, settings.train_ckpt_nodes, self.sdk)
        apply_split(
            module,
            edges=settings.train_split_edges,
            sdk=self.sdk,
            num_ipus=settings.num_ipus,
            where="train_split_edges",
        )

    def _prepared(self) -> Executors:
        if self.executors is None:
            raise RuntimeError("the adapter is not prepared: call prepare first")
        return self.executors

    def _training(self) -> tuple[Executors, DeviceOptimizer]:
        executors = self._prepared()
        if self._optimizer is None:
            raise ConfigError("there is no optimizer, so an IPU has nothing to train")
        return executors, self._optimizer

    def flat(self, batch: Any, mode: str) -> Flat:
        """The tensors of a batch as the graph takes them."""
        step: Any = self._prepared().module.step
        stacked = step.stacked
        batch = whole(batch) if stacked is None else stacked(whole(batch), mode)
        return flatten(batch, half=self._policy.precision == "fp16")

    def _compile_training(self, flat: Flat) -> Executor:
        executors, twin = self._training()
        parts = micro_batches(self._options)
        rows = rows_of(flat, parts)
        if rows % parts:
            raise ConfigError(
                f"a batch of {rows} samples cannot be divided over {parts} "
                f"micro-batches: give a multiple of {parts}"
            )
        trainer = executors.compile_training(
            Call("train", flat), self._options, twin.twin
        )
        if self._rng is not None:
            trainer.inner.rng_state = list(self._rng)
        return trainer

    def _recompile(self, trainer: Executor) -> None:
        """Have the next update compile a graph, which goes on from this one's state."""
        logger.warning(
            "ipu: a parameter was frozen or freed, or a layer's train or eval mode "
            "changed, which a graph keeps as it was: compiling anew"
        )
        executors, twin = self._training()
        self._rng = list(trainer.inner.rng_state)
        executors.to_host()
        twin.detach()
        executors.close()

    def _compile_evaluation(
        self, step: StepModule, flat: Flat, rows: int, mode: str
    ) -> Executor:
        parts = micro_batches(self._eval_options)
        capacity = -(-rows // parts) * parts
        picked = torch.arange(capacity).clamp(max=rows - 1)
        full = replace(flat, tensors=flat.take(picked))
        was_training = step.training
        step.eval()  # the graph keeps the mode it is compiled in
        try:
            return self._prepared().compile_evaluation(
                Call(mode, full), self._eval_options
            )
        finally:
            step.train(was_training)

    def _trained(self, call: Call, outputs: Any) -> StepOutput:
        options = self._options
        summed = options.output_mode == self.sdk.OutputMode.Sum
        steps = options.device_iterations * options.Training.gradient_accumulation
        values = outputs[0].numel() if call.scalars else 1
        log_vars = means(call, outputs, None, values * (steps if summed else 1))
        loss = log_vars["loss"]
        if self._guard is not None:
            self._guard.blocks(loss)
        samples = call.num_samples * micro_batches(options)
        return StepOutput({"loss": loss, "log_vars": log_vars, "num_samples": samples})
