"""Runs on points of two classes, which do the same every time."""

import logging

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from devrun.runners import EpochBasedRunner, IterBasedRunner
from tests.support.observe import Lines


def samples(count=12):
    """`count` points of two classes that a line separates."""
    x = torch.linspace(-1, 1, count).unsqueeze(1).repeat(1, 2)
    return TensorDataset(x, (x[:, 0] > 0).long())


def loader(count=12, batch_size=3, **kwargs):
    return DataLoader(samples(count), batch_size=batch_size, **kwargs)


def model():
    """Two scores for each point; the same weights every time."""
    net = nn.Linear(2, 2)
    with torch.no_grad():
        net.weight.copy_(torch.tensor([[-0.1, 0.0], [0.1, 0.05]]))
        net.bias.copy_(torch.tensor([0.2, 0.0]))
    return net


def make_runner(*hooks, by_epoch=True, length=2, **kwargs):
    """A runner on the host with its own logger; `runner.lines` has what it said."""
    net = kwargs.pop("model", None) or model()
    if not hasattr(net, "train_step"):
        kwargs.setdefault("loss", nn.CrossEntropyLoss())
    if "optimizer" not in kwargs:
        kwargs["optimizer"] = torch.optim.SGD(net.parameters(), lr=0.1)
    cls = EpochBasedRunner if by_epoch else IterBasedRunner
    lines = Lines()
    logger = logging.Logger("test", logging.INFO)
    logger.addHandler(lines)
    kwargs["max_epochs" if by_epoch else "max_iters"] = length
    runner = cls(net, logger=logger, **kwargs)
    runner.lines = lines
    for hook in hooks:
        runner.register_hook(hook)
    return runner
