"""A runner of your own: a phase of the workflow beside `train` and `val`.

    python examples/own_runner.py

The statistics of BatchNorm are a moving average over weights that have changed since.
This phase takes them anew, at the present weights, after each epoch: "Precise
BatchNorm" (Wu and Johnson, "Rethinking 'Batch' in BatchNorm", 2021).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader

from devrun import RUNNERS, EpochBasedRunner
from devrun.data import DigitsDataset
from devrun.models import ResNet


@RUNNERS.register_module()
class CalibratingRunner(EpochBasedRunner):
    """Has the phase `calibrate`: a public method whose argument is `data_loader`."""

    def calibrate(self, data_loader: Any, **kwargs: Any) -> None:
        """Set the statistics of every BatchNorm to those over `data_loader`."""
        kinds = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
        norms = [part for part in self.model.modules() if isinstance(part, kinds)]
        momenta = [norm.momentum for norm in norms]
        for norm in norms:
            norm.reset_running_stats()
            norm.momentum = None  # the mean over all batches
        self.model.train()
        for batch in self.loader(data_loader, training=True):
            self.eval_step(batch)  # no gradients; on whatever device this runs
        for norm, momentum in zip(norms, momenta):
            norm.momentum = momentum
        self.logger.info("calibrated %d layers of BatchNorm", len(norms))


def main(max_epochs: int = 2) -> CalibratingRunner:
    """Train, with a calibration after each epoch."""
    torch.manual_seed(0)
    model = ResNet(
        stem="cifar",
        stage_blocks=[1],
        base_channels=8,
        in_channels=1,
        num_classes=10,
    )
    to_unit = {"type": "Normalize", "mean": [78.0], "std": [96.0]}
    data = DigitsDataset("val", pipeline=[to_unit])
    loaders = [
        DataLoader(data, batch_size=32, shuffle=True),
        DataLoader(data, batch_size=120),
    ]
    runner = CalibratingRunner(
        model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        loss=nn.CrossEntropyLoss(),
        max_epochs=max_epochs,
        seed=0,
    )
    runner.run(loaders, [("train", 1), ("calibrate", 1)])
    runner.close()
    return runner


if __name__ == "__main__":
    main()
