"""The device `xla`: TPU, Trainium, and the CPU where `PJRT_DEVICE=CPU` is set.

PyTorch/XLA is lazy: an operator notes a node of a graph, and `torch_xla.sync` compiles
and launches it. Steps end with one; reading a value does what it needs by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch_xla
from torch_xla import runtime
from torch_xla.core import xla_model

from devrun.devices import DeviceInfo, EagerAdapter
from devrun.dist import get_dist_info
from devrun.step import StepOutput

__all__ = ["XLAAdapter"]


class XLAAdapter(EagerAdapter):
    """Runs each update, and each step of an evaluation, as one compiled graph."""

    name = "xla"

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
            for index in range(runtime.addressable_device_count())
        ]

    def claim(self) -> torch.device:
        return torch_xla.device()

    def setup(self, seed: int | None) -> None:
        super().setup(seed)
        if seed is not None:  # torch.manual_seed leaves this stream alone
            self.set_rng_state({"xla": seed + get_dist_info()[0]})

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

    def synchronize(self) -> None:
        torch_xla.sync(wait=True)

    def rng_state(self) -> dict[str, Any]:
        return {"xla": xla_model.get_rng_state()}

    def set_rng_state(self, state: Mapping[str, Any]) -> None:
        if "xla" in state:
            xla_model.set_rng_state(state["xla"])
