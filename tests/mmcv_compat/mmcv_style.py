"""A model, a data set and a runner as an MMCV 1.x user writes them."""

from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from devrun.runners import EpochBasedRunner


class Samples(Dataset[Any]):
    """Sixteen labelled vectors, with MMCV's `evaluate`."""

    def __init__(self):
        generator = torch.Generator().manual_seed(3)
        self.inputs = torch.randn(16, 4, generator=generator)
        self.labels = torch.randint(0, 2, (16,), generator=generator)
        self.asked = []

    def __len__(self):
        return len(self.inputs)

    def __getitem__(self, index):
        return {"img": self.inputs[index], "gt_label": self.labels[index]}

    def evaluate(self, results, logger=None, **options):
        self.asked.append(results)
        return {"answered": float(len(results))}


class Classifier(nn.Module):
    """Losses or predictions from one `forward`, as `return_loss` says."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.backbone = nn.Sequential(nn.Linear(4, 8), nn.ReLU())
        self.head = nn.Linear(8, 2)

    def forward(self, img, return_loss=True, **data):
        scores = self.head(self.backbone(img))
        if not return_loss:
            return list(scores.detach().cpu().numpy())
        return {"loss": nn.functional.cross_entropy(scores, data["gt_label"])}

    def train_step(self, data, optimizer=None, **kwargs):
        loss = self(**data)["loss"]
        log_vars = {"loss": loss.item()}
        return {"loss": loss, "log_vars": log_vars, "num_samples": len(data["img"])}

    def val_step(self, data, optimizer=None, **kwargs):
        return self.train_step(data, optimizer)


def loader(dataset=None):
    return DataLoader(dataset or Samples(), batch_size=4)


def runner_of(kind=EpochBasedRunner, model=None, **options):
    model = model or Classifier()
    if "max_iters" not in options:
        options.setdefault("max_epochs", 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    return kind(model, optimizer=optimizer, device="cpu", **options)
