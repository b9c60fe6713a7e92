"""The device `cores`: the CPU with a number of threads, as an option of the device."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch

from devrun.devices import DeviceInfo, EagerAdapter
from devrun.devices.options import EagerOptions
from devrun.errors import DeviceUnavailableError

if TYPE_CHECKING:
    from devrun.probes.probe import Probes

__all__ = ["CoresAdapter", "CoresOptions"]


@dataclass(frozen=True)
class CoresOptions(EagerOptions):
    """What `device: {type: cores, ...}` takes, with the types that are accepted."""

    count: int = field(default=1, metadata={"kinds": (int,)})
    """Threads of one operation."""


class CoresAdapter(EagerAdapter):
    """Runs on `count` threads, and leaves the process as it was."""

    name = "cores"
    dist_backend = "gloo"
    host_shared = True  # the host reads a tensor without waiting
    options_type = CoresOptions
    options: CoresOptions
    _before: int | None = None

    @classmethod
    def unavailable_reason(cls) -> str | None:
        return None

    @classmethod
    def list_devices(cls) -> Sequence[DeviceInfo]:
        return [DeviceInfo(f"{os.cpu_count()} cores", dtypes=("fp32", "bf16"))]

    @classmethod
    def probes(cls) -> Probes:
        from devrun_cores.probes import PROBES  # a training needs none

        return PROBES

    def claim(self) -> torch.device:
        have = os.cpu_count() or 1
        if not 1 <= self.options.count <= have:
            raise DeviceUnavailableError(
                f"device 'cores' has {have} cores, {self.options.count} were asked "
                f"for: set count to 1 to {have}"
            )
        self._before = torch.get_num_threads()
        torch.set_num_threads(self.options.count)
        return torch.device("cpu")

    def teardown(self) -> None:
        super().teardown()
        if self._before is not None:
            torch.set_num_threads(self._before)
            self._before = None
