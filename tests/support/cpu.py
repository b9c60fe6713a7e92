"""Small models and a prepared CPU adapter for the tests of this room."""

import torch
from torch import nn

from devrun.devices.cpu import CPUAdapter
from devrun.models.step_module import StepModule
from devrun.step import UpdatePolicy
from tests.support.strict import zip_strict


def net():
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))


def batch(size=8):
    generator = torch.Generator().manual_seed(2)
    inputs = torch.randn(size, 4, generator=generator)
    return inputs, torch.randint(0, 3, (size,), generator=generator)


def weights(model):
    return [param.detach().clone() for param in model.parameters()]


def same(first, second):
    return all(torch.equal(a, b) for a, b in zip_strict(first, second))


class Prepared:
    """A model on the CPU adapter; `step` does one update."""

    def __init__(
        self,
        model=None,
        optimizer="sgd",
        adapter=None,
        options=None,
        loss="cross_entropy",
        **policy,
    ):
        self.adapter = adapter or CPUAdapter.from_config(options or {})
        self.adapter.setup(0)
        self.module = model or net()
        if optimizer == "sgd":
            optimizer = torch.optim.SGD(self.module.parameters(), lr=0.1)
        own = hasattr(self.module, "train_step")
        loss = nn.CrossEntropyLoss() if loss == "cross_entropy" and not own else loss
        self.model, self.optimizer = self.adapter.prepare(
            StepModule(self.module, None if own else loss),
            optimizer,
            UpdatePolicy(**policy),
        )

    def step(self, data=None, on_grads=None):
        data = batch() if data is None else data
        return self.adapter.train_step(self.model, data, self.optimizer, on_grads)
