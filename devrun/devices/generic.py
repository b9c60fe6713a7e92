"""Any accelerator that PyTorch supports itself: Apple's mps, Intel's xpu, npu, ...

`torch.accelerator` (torch 2.6 and later) is the interface to the one that the
installed build has; what only some of them offer is asked of their module and left
out elsewhere.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch

from devrun.devices.base import DeviceInfo
from devrun.devices.eager import EagerAdapter
from devrun.devices.options import IndexedOptions
from devrun.devices.placement import chosen_index
from devrun.torch_features import lacks


class GenericAdapter(EagerAdapter):
    """The accelerator that the installed torch has, under its own name."""

    name = "accelerator"
    device_type: ClassVar[str | None] = None
    """What `torch.device` calls it; None takes the one that is here."""
    how_to_get: ClassVar[str] = "install the torch build or plug-in of its vendor"
    options_type = IndexedOptions
    options: IndexedOptions

    @classmethod
    def unavailable_reason(cls) -> str | None:
        if lacks("2.6"):
            return f"it needs torch 2.6 or later, this is {torch.__version__}"
        here = _current_type()
        if here is None:
            return f"torch {torch.__version__} sees no accelerator; {cls.how_to_get}"
        if cls.device_type not in (None, here):
            return f"the accelerator of this torch is {here}; {cls.how_to_get}"
        return None

    @classmethod
    def list_devices(cls) -> Sequence[DeviceInfo]:
        if cls.unavailable_reason() is not None:
            return ()
        kind = _current_type()
        return tuple(
            DeviceInfo(*_name_and_memory(kind, index), ("fp32", "bf16", "fp16"))
            for index in range(torch.accelerator.device_count())
        )

    def stats(self) -> dict[str, float]:
        peak = self._call("max_memory_allocated")
        known = {} if peak is None else {"peak_mib": peak / 2**20}
        return {**super().stats(), **known}

    def empty_cache(self) -> None:
        self._call("empty_cache")

    def synchronize(self) -> None:
        torch.accelerator.synchronize()

    def rng_state(self) -> dict[str, Any]:
        state = self._call("get_rng_state")
        return {} if state is None else {self.device.type: state}

    def set_rng_state(self, state: Mapping[str, Any]) -> None:
        if self.device.type in state:
            self._call("set_rng_state", state[self.device.type].cpu())

    def claim(self) -> torch.device:
        here = torch.accelerator.device_count()
        index = chosen_index(self.name, self.options.index, here)
        if index is not None:
            if lacks("2.8"):  # where the old name warns
                torch.accelerator.set_device_idx(index)
            else:
                torch.accelerator.set_device_index(index)
        # A single device goes without a number: some types know only one.
        kind = _current_type() or "cpu"
        return torch.device(kind) if index is None else torch.device(kind, index)

    def _call(self, name: str, *args: Any) -> Any:
        """Call `name` of the device's module; None where it has no such function."""
        module = getattr(torch, self.device.type, None)
        function = getattr(module, name, None)
        return None if function is None else function(*args)


class MPSAdapter(GenericAdapter):
    """Apple silicon."""

    name = "mps"
    device_type = "mps"
    how_to_get = "mps needs an Apple silicon Mac and its usual torch build"


class XPUAdapter(GenericAdapter):
    """Intel GPUs."""

    name = "xpu"
    dist_backend = "xccl"
    device_type = "xpu"
    how_to_get = "xpu needs an Intel GPU, its driver and the xpu build of torch"


class NPUAdapter(GenericAdapter):
    """Ascend processors, through the vendor's plug-in."""

    name = "npu"
    dist_backend = "hccl"
    device_type = "npu"
    how_to_get = "npu needs an Ascend device, CANN and the package torch_npu"


def _current_type() -> str | None:
    """The type of the accelerator that is here now, or None."""
    if not torch.accelerator.is_available():
        return None
    current = torch.accelerator.current_accelerator()
    return None if current is None else current.type


def _name_and_memory(kind: str | None, index: int) -> tuple[str, int | None]:
    module = getattr(torch, kind or "", None)
    read = getattr(module, "get_device_properties", None)
    properties = None if read is None else read(index)
    name = getattr(properties, "name", None) or f"{kind}:{index}"
    return str(name), getattr(properties, "total_memory", None)
