"""The device `xla`: TPU, Trainium, and the CPU where `PJRT_DEVICE=CPU` is set.

PyTorch/XLA is lazy: an operator notes a node of a graph, and `torch_xla.sync` compiles
and launches it. Steps end with one; reading a value does what it needs by itself.
With `XLA_USE_SPMD=1` one process trains on all devices, each with its rows of a batch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch_xla
from torch_xla import runtime
from torch_xla.core import xla_model
from torch_xla.debug import metrics
from torch_xla.distributed import spmd

from devrun.devices import DeviceInfo, EagerAdapter
from devrun.dist import launched
from devrun.errors import UnsupportedFeatureError
from devrun.probes.probe import Probes
from devrun.step import StepOutput
from devrun.tensors import map_tensors

__all__ = ["XLAAdapter"]


class XLAAdapter(EagerAdapter):
    """Runs each update, and each step of an evaluation, as one compiled graph."""

    name = "xla"
    _mesh: spmd.Mesh | None = None

    @classmethod
    def unavailable_reason(cls) -> str | None:
        try:
            torch_xla.device()
        except RuntimeError as error:
            return f"torch_xla finds no device: {str(error).strip().splitlines()[0]}"
        return None

    @classmethod
    def list_devices(cls) -> Sequence[DeviceInfo]:
        if cls.unavailable_reason() is not None:
            return ()
        return [
            DeviceInfo(f"{runtime.device_type()}:{index}", dtypes=("fp32", "bf16"))
            for index in range(runtime.addressable_runtime_device_count())
        ]

    @classmethod
    def probes(cls) -> Probes:
        from devrun_xla.probes import PROBES

        return PROBES

    def claim(self) -> torch.device:
        if launched():  # XLA's processes are those of torch_xla.launch, not torchrun's
            raise UnsupportedFeatureError(
                "an XLA run is one process: set XLA_USE_SPMD=1 for all devices, and "
                "take no --num-devices and no launcher"
            )
        if runtime.is_spmd():
            self._mesh = spmd.get_1d_mesh("data")
        return torch_xla.device()

    def to_device(self, batch: Any) -> Any:
        return map_tensors(self._divided, super().to_device(batch))

    def _divided(self, tensor: torch.Tensor) -> torch.Tensor:
        """The tensor, its rows on all devices; the compiler adds what they exchange."""
        if self._mesh is not None and tensor.dim():
            rest = (None,) * (tensor.dim() - 1)
            spmd.mark_sharding(tensor, self._mesh, ("data", *rest))
        return tensor

    def setup(self, seed: int | None) -> None:
        super().setup(seed)
        if seed is not None:  # torch.manual_seed leaves this stream alone
            self.set_rng_state({"xla": seed})

    def train_step(
        self,
        model: Any,
        batch: Any,
        optimizer: Any,
        on_grads: Callable[[], None] | None = None,
    ) -> StepOutput:
        outputs = super().train_step(model, batch, optimizer, on_grads)
        torch_xla.sync()
        return outputs

    def eval_step(self, model: Any, batch: Any, mode: str = "val") -> StepOutput:
        outputs = super().eval_step(model, batch, mode)
        torch_xla.sync()
        return outputs

    def stats(self) -> dict[str, float]:
        both = ("TransferToDeviceTime", "TransferFromDeviceTime")
        moved = [metrics.metric_data(name) for name in both]
        return {
            **super().stats(),
            "graphs": metrics.counter_value("UncachedCompile") or 0,
            "transfers": sum(data[0] for data in moved if data is not None),
        }

    def synchronize(self) -> None:
        torch_xla.sync(wait=True)

    def rng_state(self) -> dict[str, Any]:
        return {"xla": xla_model.get_rng_state()}

    def set_rng_state(self, state: Mapping[str, Any]) -> None:
        if "xla" in state:
            xla_model.set_rng_state(state["xla"])
