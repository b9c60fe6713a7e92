"""A LightningModule in one process of several; writes what it saw.

python lightning_worker.py FOLDER
"""

import json
import os
import sys
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from devrun import EpochBasedRunner
from devrun.hooks import EvalHook
from tests.support.packages import let_torchvision_load

let_torchvision_load()
import lightning  # noqa: E402

SEEN = {}


class Lit(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(4, 2)

    def training_step(self, batch, batch_idx):
        loss = nn.functional.cross_entropy(self.net(batch[0]), batch[1])
        self.log("seen", loss, on_epoch=True, on_step=False, sync_dist=True)
        return loss

    def validation_step(self, batch, batch_idx):
        loss = nn.functional.cross_entropy(self.net(batch[0]), batch[1])
        self.log("val_loss", loss, sync_dist=True)

    def on_validation_epoch_end(self):
        trainer = self.trainer
        SEEN["place"] = [self.global_rank, trainer.local_rank, trainer.world_size]
        SEEN["main"] = trainer.is_global_zero
        self.log("rank", float(self.global_rank), sync_dist=True)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def trained(batch):
    """What it saw and became in two epochs."""
    SEEN.clear()
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(24, 4, generator=generator)
    data = TensorDataset(x, (x[:, 0] > 0).long())
    torch.manual_seed(0)
    runner = EpochBasedRunner(Lit(), device="cpu", seed=0, max_epochs=2)
    runner.register_hook(EvalHook(DataLoader(data, batch_size=batch)))
    runner.run([DataLoader(data, batch_size=batch, shuffle=True)], [("train", 1)])
    SEEN["weights"] = runner.model.net.weight.detach().flatten().tolist()
    SEEN["results"] = dict(runner.log_buffer.output)
    runner.close()
    return dict(SEEN)


def main(folder):
    place = Path(folder) / f"rank{os.environ['RANK']}.json"
    place.write_text(json.dumps(trained(4)))


if __name__ == "__main__":
    main(*sys.argv[1:])
