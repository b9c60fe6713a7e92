"""A device of your own, on which PyTorch runs operation by operation.

    python examples/own_device.py

This one stands for an accelerator: its tensors are on the CPU, and it counts the bytes
that a real one would have to move.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader

from devrun import EpochBasedRunner, Hook, Run, register_device
from devrun.data import DigitsDataset
from devrun.devices import DeviceInfo, EagerAdapter
from devrun.tensors import tensors_in


class MeteredAdapter(EagerAdapter):
    """The CPU with a meter at its door."""

    name = "metered"
    dist_backend = "gloo"
    moved = 0
    """Bytes of all batches so far."""

    @classmethod
    def unavailable_reason(cls) -> str | None:
        """A sentence where the device or its driver is missing, with how to get it."""
        return None

    @classmethod
    def list_devices(cls) -> Sequence[DeviceInfo]:
        return [DeviceInfo("one meter", dtypes=("fp32",))]

    def claim(self) -> torch.device:
        """Make the device the current one; where tensors go from now on."""
        return torch.device("cpu")

    def to_device(self, batch: Any) -> Any:
        self.moved += sum(t.numel() * t.element_size() for t in tensors_in(batch))
        return super().to_device(batch)


class MeterHook(Hook):
    """Logs what was moved, on a device with a meter."""

    def after_train_iter(self, runner: Run) -> None:
        if isinstance(runner.adapter, MeteredAdapter):
            runner.log_buffer.update({"mib_moved": runner.adapter.moved / 2**20})


register_device("metered", MeteredAdapter)


def main(device: str = "metered") -> EpochBasedRunner:
    """Train one epoch on `device`; nothing else in it depends on which one."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    to_unit = {"type": "Normalize", "mean": [78.0], "std": [96.0]}
    data = DigitsDataset("train", pipeline=[to_unit])
    runner = EpochBasedRunner(
        model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        loss=nn.CrossEntropyLoss(),
        max_epochs=1,
        device=device,
        seed=0,
    )
    runner.register_hook(MeterHook())
    runner.run([DataLoader(data, batch_size=64, shuffle=True)])
    runner.close()
    return runner


if __name__ == "__main__":
    print(main().outputs.log_vars)
