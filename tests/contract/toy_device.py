"""Two adapters as somebody else would ship them: a small one and a stubborn one."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from devrun.data.prepared import PreparedLoader
from devrun.data.spec import LoaderSpec
from devrun.devices.base import DeviceAdapter, DeviceInfo
from devrun.devices.eager import EagerAdapter
from devrun.errors import ConfigError, UnsupportedFeatureError
from devrun.models.step_module import StepModule
from devrun.step import Capability, MicroBatches, StepOutput, UpdatePolicy
from devrun.tensors import batch_size_of
from tests.support.strict import zip_strict


class ToyAdapter(EagerAdapter):
    """All that a device needs on which PyTorch runs operation by operation."""

    name = "toy"
    host_shared = False  # as if values had to be fetched: finite checks are deferred

    @classmethod
    def unavailable_reason(cls) -> str | None:
        return None

    @classmethod
    def list_devices(cls) -> tuple[DeviceInfo, ...]:
        return (DeviceInfo("one toy", 2**30, ("fp32",)),)


class MirrorAdapter(DeviceAdapter):
    """A device that owns the weights and a random stream of its own.

    The host's copy of the weights is stale until it is synced.
    """

    name = "mirror"
    capabilities = frozenset(
        {Capability.DYNAMIC_SHAPES, Capability.CLIP_VALUE, Capability.GRAD_NORM}
    )

    def __init__(self) -> None:
        self._model: Any = None
        self._optimizer: Any = None
        self._host_optimizer: Any = None
        self._policy = UpdatePolicy()
        self._stream = torch.Generator().get_state()

    @classmethod
    def unavailable_reason(cls) -> str | None:
        return None

    @classmethod
    def list_devices(cls) -> tuple[DeviceInfo, ...]:
        return (DeviceInfo("one mirror", None, ("fp32",)),)

    @classmethod
    def from_config(cls, cfg: Mapping[str, Any]) -> MirrorAdapter:
        unknown = [key for key in cfg if key != "type"]
        if unknown:
            raise ConfigError(f"device 'mirror' has no option {unknown[0]!r}")
        return cls()

    def setup(self, seed: int | None) -> None:
        if seed is not None:
            torch.manual_seed(seed)
            self._stream = torch.Generator().manual_seed(seed).get_state()

    def prepare(
        self, model: nn.Module, optimizer: Any, policy: UpdatePolicy
    ) -> tuple[Any, Any]:
        if policy.precision != "fp32" or policy.options:
            raise UnsupportedFeatureError("device 'mirror' only computes in fp32")
        if policy.owner not in ("auto", "adapter"):
            raise UnsupportedFeatureError("device 'mirror' does the update itself")
        self._policy = policy
        # one deepcopy of both, so that the copied optimizer steps the copied weights
        self._model, self._optimizer = copy.deepcopy((model, optimizer))
        self._host_optimizer = optimizer
        return model, optimizer

    def prepare_dataloader(
        self, loader: Any, *, training: bool, seed: int | None = None
    ) -> Any:
        if isinstance(loader, PreparedLoader):
            return loader
        return PreparedLoader(
            LoaderSpec.of(loader, seed=seed or 0, training=training),
            accumulate=self._policy.accumulate if training else 1,
        )

    def train_step(
        self, model: Any, batch: Any, optimizer: Any, on_grads: Any = None
    ) -> StepOutput:
        if on_grads is not None:
            raise UnsupportedFeatureError("device 'mirror' gives no gradients away")
        with torch.random.fork_rng():
            torch.set_rng_state(self._stream)
            outputs = self._update(model, batch, optimizer)
            self._stream = torch.get_rng_state()
        return outputs

    def _update(self, model: Any, batch: Any, optimizer: Any) -> StepOutput:
        parts = batch if isinstance(batch, MicroBatches) else [batch]
        total = batch_size_of(batch)
        self._model.train(model.training)
        mine = self._optimizer.param_groups
        for here, there in zip_strict(optimizer.param_groups, mine):
            there.update({k: v for k, v in here.items() if k != "params"})
        self._optimizer.zero_grad()
        loss, log_vars = 0.0, {}
        for part in parts:
            outputs = self._model(part, "train")
            share = outputs["loss"] * (batch_size_of(part) / total)
            share.backward()
            loss = loss + share.detach()
        log_vars["loss"] = loss
        clip = self._policy.grad_clip
        if clip and "clip_value" in clip:
            nn.utils.clip_grad_value_(self._model.parameters(), **clip)
        elif clip:
            norm = nn.utils.clip_grad_norm_(self._model.parameters(), **clip)
            log_vars["grad_norm"] = norm
        self._optimizer.step()
        return StepOutput(loss=loss, log_vars=log_vars, num_samples=total)

    def eval_step(self, model: Any, batch: Any, mode: str = "val") -> StepOutput:
        self._model.train(model.training)
        with torch.no_grad():
            return StepOutput(self._model(batch, mode))

    def unwrap_model(self, model: Any) -> nn.Module:
        return model.module if isinstance(model, StepModule) else model

    def sync_to_host(self, model: Any) -> None:
        if self._model is not None:
            weights = self._model.module.state_dict()
            self.unwrap_model(model).load_state_dict(weights)
            _copy_state(self._optimizer, self._host_optimizer)

    def sync_to_device(self, model: Any) -> None:
        if self._model is not None:
            weights = self.unwrap_model(model).state_dict()
            self._model.module.load_state_dict(weights)
            _copy_state(self._host_optimizer, self._optimizer)

    def check_finite(self, model: Any = None) -> None:
        """Not watched here."""

    def rng_state(self) -> dict[str, Any]:
        return {"stream": self._stream}

    def set_rng_state(self, state: Mapping[str, Any]) -> None:
        self._stream = state["stream"]

    def teardown(self) -> None:
        self._model = self._optimizer = self._host_optimizer = None


def _copy_state(source: torch.optim.Optimizer, target: torch.optim.Optimizer) -> None:
    """Moments and counters only: learning rates are the host's to decide."""
    groups = target.state_dict()["param_groups"]
    state = copy.deepcopy(source.state_dict()["state"])
    target.load_state_dict({"state": state, "param_groups": groups})
