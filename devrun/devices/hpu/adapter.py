"""`HPUAdapter`: Intel Gaudi in its three modes."""

from __future__ import annotations

import contextlib
import functools
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from operator import methodcaller
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from devrun.data.prepared import PreparedLoader
from devrun.devices.base import DeviceInfo
from devrun.devices.capture import Finding
from devrun.devices.compiling import compile_in_place
from devrun.devices.eager import EagerAdapter
from devrun.devices.hpu import environment, sdk
from devrun.devices.hpu.fused import converted, fused_clip, make_gradients_dense
from devrun.devices.hpu.lazy import Generating, GraphedForward, Markers
from devrun.devices.hpu.options import HPUOptions
from devrun.devices.options import EagerOptions
from devrun.devices.placement import move_together, step_module_of
from devrun.devices.update import UpdateRule
from devrun.errors import DeviceUnavailableError, UnsupportedFeatureError
from devrun.models.step_module import StepModule
from devrun.step import Capability, StepOutput, UpdatePolicy
from devrun.text import joined

if TYPE_CHECKING:
    from devrun.probes.probe import Probes

logger = logging.getLogger("devrun")

_DTYPES = ("fp32", "bf16")


class HPUAdapter(EagerAdapter):
    """One Gaudi per process; several under a launcher, joined by HCCL."""

    name = "hpu"
    dist_backend = "cpu:gloo,hpu:hccl"
    capabilities = frozenset(Capability)
    options_type = HPUOptions
    options: HPUOptions

    def __init__(self, options: EagerOptions | None = None) -> None:
        super().__init__(options)
        self.emulated = self.options.emulate
        self._sdk: sdk.SDK | None = None
        self._markers: Markers | None = None
        self._graphed: GraphedForward | None = None
        self._generator: nn.Module | None = None
        self._undo = contextlib.ExitStack()

    @classmethod
    def unavailable_reason(cls) -> str | None:
        return sdk.missing()

    @classmethod
    def probes(cls) -> Probes:
        from devrun.devices.hpu.probes import PROBES

        return PROBES

    @classmethod
    def list_devices(cls) -> Sequence[DeviceInfo]:
        # counting them would load the SDK, which then keeps the mode it found
        return () if sdk.missing() else (DeviceInfo("Intel Gaudi", None, _DTYPES),)

    @property
    def sdk(self) -> sdk.SDK:
        """The SDK; there from `setup` on."""
        if self._sdk is None:
            raise RuntimeError("the adapter is not set up: call setup(seed) first")
        return self._sdk

    def prepare(
        self, model: nn.Module, optimizer: Any, policy: UpdatePolicy
    ) -> tuple[Any, Any]:
        self._check_precision(policy.precision)
        if self._divided and self.options.mode_open:
            self.options = replace(self.options, mode="eager")
        self._check_division()
        if self.mesh.tensor_size > 1:
            divide_linear_backward()
        prepared = super().prepare(model, optimizer, policy)
        if self.mesh.type == "fsdp":
            sum_gradients(prepared[0])
        if self._markers is not None:
            self._markers.after_prepare()
        return prepared

    def switches(self, model: nn.Module, optimizer: Any) -> dict[str, Any]:
        return {"precision": "bf16"}  # mode is an option; fused is on anyway

    def eval_step(self, model: Any, batch: Any, mode: str = "val") -> StepOutput:
        if mode == "generate" and self.options.mode == "lazy":
            model = self._generating(model)
        outputs = super().eval_step(model, batch, mode)
        if self._markers is not None:
            self._markers.after_update()
        return outputs

    def _generating(self, model: Any) -> Any:
        """The step of a model in the SDK's graphs: one a bucket, and one to decode."""
        step = step_module_of(model)
        if self._generator is None:
            self._generator = self.sdk.hpu.wrap_in_hpu_graph(Generating(step))
        return self._generator

    def stats(self) -> dict[str, float]:
        if self._sdk is None:
            return {}
        peak = self._sdk.hpu.max_memory_allocated()
        return {**super().stats(), "peak_mib": peak / 2**20}

    def synchronize(self) -> None:
        self.sdk.hpu.synchronize()

    def rng_state(self) -> dict[str, Any]:
        return {"hpu": self.sdk.hpu.get_rng_state().cpu()}

    def set_rng_state(self, state: Mapping[str, Any]) -> None:
        if "hpu" in state:
            self.sdk.hpu.set_rng_state(state["hpu"].cpu())

    def teardown(self) -> None:
        super().teardown()
        self._generator = None
        self._undo.close()

    def claim(self) -> torch.device:
        seen = environment.apply(self.options, loaded=sdk.is_loaded())
        first = self._sdk is None
        self._sdk = sdk.load(self.options.emulate)
        hpu = self._sdk.hpu
        if not hpu.is_available():
            raise DeviceUnavailableError(
                "device 'hpu' is not here: habana_frameworks sees no Gaudi; check "
                "hl-smi, the driver and HABANA_VISIBLE_MODULES"
            )
        try:
            hpu.init()
            torch.zeros(1, device="hpu")
        except RuntimeError as error:
            said = joined(error)
            raise DeviceUnavailableError(
                f"device 'hpu' is not here: no Gaudi is free ({said}); hl-smi shows "
                "which processes hold them"
            ) from error
        if first:
            self._announce(seen)
        return torch.device("hpu")

    def _announce(self, seen: Mapping[str, str]) -> None:
        kind = "emulated " if self.emulated else ""
        logger.info(
            "hpu: %s%s, habana_frameworks %s, mode %s (%s)",
            kind,
            self.sdk.hpu.get_device_name(),
            self.sdk.version,
            "left to performance: fast"
            if self.options.mode_open
            else self.options.mode,
            ", ".join(f"{name}={value}" for name, value in sorted(seen.items())),
        )

    def placed(self, model: StepModule, optimizer: Any) -> Any:
        make_gradients_dense(model)
        move_together(model, optimizer, self.device, self.options)
        if self.options.mode == "compile":
            given = self.options.compile
            arguments = dict(given) if isinstance(given, Mapping) else {}
            compile_in_place(model.module, {"backend": "hpu_backend", **arguments})
            # DDP would split the graph to overlap, which this backend cannot do
            patched = torch._dynamo.config.patch(optimize_ddp=False)
            self._undo.enter_context(patched)
        elif self.options.graphs:
            self._graph(model.module)
        # converted after the move: fused optimizers keep state on the device
        return self._fused(optimizer) if self.options.fused else optimizer

    def frozen(self) -> Sequence[Finding]:
        """What of the host's state a graph froze, so far."""
        return [] if self._graphed is None else self._graphed.findings

    def _graph(self, module: nn.Module) -> None:
        self._graphed = GraphedForward(
            self.sdk,
            module,
            max_graphs=self.options.max_graphs,
            accumulates=self._policy.accumulate > 1,
        )
        self._undo.callback(self._graphed.remove)

    def _fused(self, optimizer: Any) -> Any:
        if optimizer is None:
            return None
        if isinstance(optimizer, Mapping):
            return {k: converted(self.sdk, one) for k, one in optimizer.items()}
        return converted(self.sdk, optimizer)

    def update_rule(self, policy: UpdatePolicy, model: StepModule) -> UpdateRule:
        update = super().update_rule(policy, model)
        if update.clip is not None and self.options.fused:
            clip = fused_clip(self.sdk, policy)
            update = replace(update, clip=clip or update.clip)
        if self.options.mode != "lazy":
            return update
        self._markers = Markers(self.sdk)
        if self._graphed is not None:
            self._markers.on_micro_batch = self._graphed.set_micro_batch
            # graphs hold the gradients' memory, which must stay the same
            update = replace(update, zero=methodcaller("zero_grad", set_to_none=False))
        return replace(
            update,
            after_backward=self._markers.after_backward,
            after_update=self._markers.after_update,
            around_steps=self._markers.around_steps,
        )

    def prepare_dataloader(
        self, loader: Any, *, training: bool, seed: int | None = None
    ) -> PreparedLoader:
        prepared = super().prepare_dataloader(loader, training=training, seed=seed)
        reader = prepared.loader
        if getattr(reader, "num_workers", 0) and reader.multiprocessing_context is None:
            # a process that holds a Gaudi cannot be forked
            reader.multiprocessing_context = "forkserver"
        return prepared

    def transfers(self, move: Callable[[Any], Any]) -> dict[str, Any]:
        return {**super().transfers(move), "pin_memory": True}

    @property
    def _divided(self) -> bool:
        """Whether weights are spread over processes."""
        mesh = self.mesh
        return mesh.type == "fsdp" or mesh.tensor_size > 1

    def _check_division(self) -> None:
        """Refuse weights divided over processes where nothing can divide them."""
        reasons = {
            f"mode {self.options.mode}; set mode: eager": self.options.mode != "eager",
            "fused optimizers; set fused: false": bool(self.options.fused),
        }
        for reason, wrong in reasons.items():
            if self._divided and wrong:
                raise UnsupportedFeatureError(
                    f"parallel: {self.mesh.describe()} cannot be combined with {reason}"
                    "; type ddp can",
                    key="parallel",
                )

    def _check_precision(self, precision: str) -> None:
        if precision == "fp8":
            raise UnsupportedFeatureError(
                "precision 'fp8' is in the layers of the SDK's transformer_engine: put "
                "them in the model and enter its fp8_autocast there, or use bf16",
                key="precision",
            )
        if precision == "fp16" and self.sdk.hpu.get_device_name() == "GAUDI":
            raise UnsupportedFeatureError(
                "precision 'fp16' needs a Gaudi 2 or later, this is a Gaudi: use bf16",
                key="precision",
            )


@functools.lru_cache(maxsize=None)
def divide_linear_backward() -> None:
    """Say how `linear_backward` goes with divided operands; once a process.

    The bridge has kernels for a linear layer and its backward. Other devices take both
    apart, and torch has rules for the parts alone (2.13).
    """
    from torch.distributed.tensor import Partial, Replicate, Shard
    from torch.distributed.tensor.experimental import register_sharding

    @register_sharding(torch.ops.aten.linear_backward.default)
    def rules(inputs: Any, grad: Any, weight: Any, mask: Any) -> Any:
        """(gradients of inputs, weight, bias), (inputs, grad, weight, mask)."""
        whole, some, last = Replicate(), Partial(), Shard(inputs.ndim - 1)
        colwise = ([some, Shard(0), Shard(0)], [whole, last, Shard(0), None])
        rowwise = ([last, Shard(1), whole], [last, whole, Shard(1), None])
        found = [([whole] * 3, [whole] * 3 + [None]), colwise, rowwise]
        for dim in map(Shard, range(inputs.ndim - 1)):  # samples, or positions
            found.append(([dim, some, some], [dim, dim, whole, None]))
        return found


def sum_gradients(model: nn.Module) -> None:
    """Let sharded gradients travel as sums, since HCCL has no averages."""
    from torch.distributed.fsdp import FSDPModule

    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_force_sum_reduction_for_comms(True)
