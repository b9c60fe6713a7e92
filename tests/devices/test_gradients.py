"""Zeroing and clipping on the CPU give the bits of torch's own functions."""

import pytest
import torch
from torch import nn
from torch.optim import optimizer as of_torch

from devrun.devices.cpu import CPUAdapter
from devrun.models.step_module import StepModule
from devrun.step import UpdatePolicy


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 7), nn.ReLU(), nn.Linear(7, 3))


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


BATCHES = [
    (torch.randn(4, 5, generator=torch.Generator().manual_seed(i)), torch.arange(4) % 3)
    for i in range(6)
]


def by_adapter(policy, make=sgd, loss=nn.functional.cross_entropy):
    adapter = CPUAdapter.from_config({})
    adapter.setup(None)
    model = net()
    wrapped, optimizer = adapter.prepare(StepModule(model, loss), make(model), policy)
    steps = [adapter.train_step(wrapped, batch, optimizer) for batch in BATCHES]
    adapter.teardown()
    return model, [step.log_vars.get("grad_norm") for step in steps]


class Noting(torch.optim.SGD):
    """Zeroes in its own way."""

    zeroed = 0

    def zero_grad(self, set_to_none=True):
        self.zeroed += 1
        super().zero_grad(set_to_none)


def test_an_optimizers_own_zero_grad_is_called():
    made = []

    def noting(model):
        made.append(Noting(model.parameters(), lr=0.1))
        return made[0]

    by_adapter(UpdatePolicy(), noting)
    assert made[0].zeroed >= len(BATCHES)


def test_a_group_added_in_between_is_zeroed_and_clipped_too():
    adapter = CPUAdapter.from_config({})
    adapter.setup(None)
    model = net()
    optimizer = torch.optim.SGD(model[0].parameters(), lr=0.1)
    policy = UpdatePolicy(grad_clip={"max_norm": 0.01})
    wrapped, optimizer = adapter.prepare(
        StepModule(model, nn.functional.cross_entropy), optimizer, policy
    )
    for batch in BATCHES[:3]:
        adapter.train_step(wrapped, batch, optimizer)
    optimizer.add_param_group({"params": list(model[2].parameters())})
    model[2].zero_grad()
    for batch in BATCHES[3:]:
        adapter.train_step(wrapped, batch, optimizer)
        norm = torch.cat([param.grad.flatten() for param in model.parameters()]).norm()
        assert float(norm) == pytest.approx(0.01, rel=1e-3)
    adapter.teardown()


@pytest.mark.parametrize(
    "put",
    [
        lambda optimizer, note, _: optimizer.register_step_post_hook(note),
        lambda _, note, __: of_torch.register_optimizer_step_pre_hook(note),
        lambda optimizer, note, patch: patch.setattr(optimizer, "step", note),
        lambda _, note, patch: patch.setattr(torch.optim.SGD, "step", note),
    ],
)
def test_what_is_put_around_a_step_after_prepare_is_called(put, monkeypatch):
    noted, handles = [], []

    def loss(output, target):
        if not handles:
            handles.append(put(made[0], lambda *_: noted.append(1), monkeypatch))
        return nn.functional.cross_entropy(output, target)

    made = []
    by_adapter(UpdatePolicy(), lambda model: made.append(sgd(model)) or made[0], loss)
    if handles[0] is not None:
        handles[0].remove()
    assert len(noted) == len(BATCHES)
