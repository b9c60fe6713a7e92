"""A small training through the runner, on the CPU or on emulated IPUs."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from devrun.runners import EpochBasedRunner, IterBasedRunner
from tests.support.observe import Losses


class Net(nn.Module):
    """A convolution, BatchNorm and dropout where asked, and a linear layer."""

    def __init__(self, *, norm=False, dropout=0.0):
        super().__init__()
        self.conv = nn.Conv2d(2, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4) if norm else nn.Identity()
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(4 * 16, 4)

    def forward(self, x):
        x = torch.tanh(self.norm(self.conv(x)))
        return self.head(self.dropout(x.flatten(1)))


def net(**options):
    """The same weights each time."""
    torch.manual_seed(3)
    return Net(**options)


def loader(samples=64, batch_size=4, **options):
    generator = torch.Generator().manual_seed(8)
    x = torch.randn(samples, 2, 4, 4, generator=generator)
    y = torch.randint(0, 4, (samples,), generator=generator)
    return DataLoader(TensorDataset(x, y), batch_size=batch_size, **options)


def ipu(**options):
    return {"type": "ipu", "emulate": True, **options}


def make(
    device,
    model=None,
    optimizer=None,
    *,
    epochs=2,
    iters=None,
    stop_after=None,
    loss=None,
    **options,
):
    model = net() if model is None else model
    if optimizer is None:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    limit = {"max_epochs": epochs} if iters is None else {"max_iters": iters}
    kind = EpochBasedRunner if iters is None else IterBasedRunner
    options.setdefault("seed", 4)
    separate = nn.CrossEntropyLoss() if loss is None else loss
    runner = kind(
        model,
        optimizer=optimizer,
        loss=separate or None,
        device=device,
        **limit,
        **options,
    )
    losses = Losses(stop_after)
    runner.register_hook(losses)
    return runner, losses


def train(device, data=None, **options):
    """A closed runner and its losses."""
    runner, losses = make(device, **options)
    try:
        runner.run([loader() if data is None else data], [("train", 1)])
    finally:
        runner.close()
    return runner, losses.values


def assert_same_state(mine, other, **tolerance):
    """The same keys and values; bit for bit without a tolerance."""
    states = (
        one if isinstance(one, dict) else one.state_dict() for one in (mine, other)
    )
    found, theirs = states
    assert found.keys() == theirs.keys()
    for name, value in found.items():
        if tolerance:
            torch.testing.assert_close(value, theirs[name], **tolerance)
        else:
            assert torch.equal(value, theirs[name]), name
