"""The device of `devrun new --like device`, as an accelerator of Lightning."""

import os

import lightning as L
import torch
from lightning.pytorch.accelerators import Accelerator, AcceleratorRegistry


class CoresAccelerator(Accelerator):
    """Runs on a number of threads, and leaves the process as it was."""

    def setup_device(self, device):
        self.before = torch.get_num_threads()
        torch.set_num_threads(1)

    def teardown(self):
        torch.set_num_threads(self.before)

    @staticmethod
    def parse_devices(devices):
        have = os.cpu_count() or 1
        if not 1 <= int(devices) <= have:
            raise ValueError(f"{devices} cores were asked for, {have} are here")
        return int(devices)

    @staticmethod
    def get_parallel_devices(devices):
        return [torch.device("cpu")]

    @staticmethod
    def auto_device_count():
        return 1

    @staticmethod
    def is_available():
        return True

    @staticmethod
    def name():
        return "cores"

    def get_device_stats(self, device):
        return {}


AcceleratorRegistry.register("cores", CoresAccelerator, description="CPU threads")

if __name__ == "__main__":
    from lightning.pytorch.demos.boring_classes import BoringModel

    trainer = L.Trainer(accelerator="cores", devices=1, max_steps=4, logger=False)
    trainer.fit(BoringModel())
    print("trained on", trainer.accelerator.name())
