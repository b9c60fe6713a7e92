"""Runs whose data and model draw from every random stream."""

import random
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

from devrun.runners import EpochBasedRunner, IterBasedRunner


class Augmented(Dataset[Any]):
    """Samples with noise drawn from three global random streams."""

    def __init__(self, length=24):
        generator = torch.Generator().manual_seed(7)
        self.inputs = torch.randn(length, 4, generator=generator)

    def __len__(self):
        return len(self.inputs)

    def __getitem__(self, index):
        noise = torch.rand(4) + random.random()
        return self.inputs[index] + 0.1 * noise, self.inputs[index].sum() > 0


def net():
    """A classifier whose dropout draws from torch's stream at every step."""
    torch.manual_seed(3)
    return nn.Sequential(
        nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 2)
    )


def loss(output, target):
    return nn.functional.cross_entropy(output, target.long())


def loader(length=24, **options):
    options = {"batch_size": 4, "shuffle": True, **options}
    return DataLoader(Augmented(length), **options)


def plain_loader(batches, batch_size=2):
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(batches * batch_size, 4, generator=generator)
    labels = (inputs.sum(1) > 0).long()
    return DataLoader(TensorDataset(inputs, labels), batch_size=batch_size)


def runner(by_epoch=True, limit=2, **options):
    model = options.pop("model", None) or net()
    optimizer = options.pop("optimizer", None) or torch.optim.SGD(
        model.parameters(), lr=0.1, momentum=0.9
    )
    kind = EpochBasedRunner if by_epoch else IterBasedRunner
    name = "max_epochs" if by_epoch else "max_iters"
    options = {"loss": loss, "device": "cpu", "seed": 5, name: limit, **options}
    return kind(model, optimizer=optimizer, **options)


def weights(run):
    return {name: t.clone() for name, t in run.model.state_dict().items()}


def same(first, second):
    return first.keys() == second.keys() and all(
        torch.equal(first[name], second[name]) for name in first
    )
