"""Optimizer state belongs to names: order may change, what does not fit is said."""

import copy

import pytest
import torch
from torch import nn

from devrun.checkpoint import decode_tree, encode_tree, optimizer_state_by_name
from devrun.errors import CheckpointError
from devrun.files import json_line, parse_json
from tests.checkpoint.conftest import load_optimizer_state_by_name


class Model(nn.Module):
    """Two layers, registered in either order."""

    def __init__(self, turned=False, seed=0):
        super().__init__()
        torch.manual_seed(seed)
        layers = {"first": nn.Linear(3, 4), "second": nn.Linear(4, 3)}
        for name in sorted(layers, reverse=turned):
            self.add_module(name, layers[name])

    def forward(self, x):
        return self.second(torch.tanh(self.first(x)))


def step(model, optimizer, times=3):
    generator = torch.Generator().manual_seed(1)
    for _ in range(times):
        x = torch.randn(8, 3, generator=generator)

        def closure(x=x):
            optimizer.zero_grad()
            loss = (model(x) - x).square().mean()
            loss.backward()
            return loss

        optimizer.step(closure)


def through_files(tree):
    """As a checkpoint would give it back."""
    encoded = encode_tree(tree)
    copied = {name: tensor.clone() for name, tensor in encoded.tensors.items()}
    return decode_tree(parse_json(json_line(encoded.tree)), copied)


OPTIMIZERS = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
    "plain SGD": lambda p: torch.optim.SGD(p, lr=0.1),
    "AdamW": lambda p: torch.optim.AdamW(p, lr=0.01, amsgrad=True),
    "Adagrad": lambda p: torch.optim.Adagrad(p, lr=0.1),
    "RMSprop": lambda p: torch.optim.RMSprop(p, lr=0.01, momentum=0.5, centered=True),
    "NAdam": lambda p: torch.optim.NAdam(p, lr=0.01),
    "Adafactor": lambda p: torch.optim.Adafactor(p, lr=0.01),
    "LBFGS": lambda p: torch.optim.LBFGS(p, lr=0.5, max_iter=3),
}


@pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS.keys())
def test_a_restored_optimizer_goes_on_bit_for_bit(make, same):
    model = Model()
    optimizer = make(model.parameters())
    step(model, optimizer)
    tree = through_files(optimizer_state_by_name(model, optimizer))

    other = Model(seed=5)
    other.load_state_dict(copy.deepcopy(model.state_dict()))
    resumed = make(other.parameters())
    load_optimizer_state_by_name(other, resumed, tree)
    step(model, optimizer)
    step(other, resumed)
    assert same(dict(other.state_dict()), dict(model.state_dict()))


@pytest.mark.parametrize("name", ["SGD", "AdamW", "Adagrad"])
def test_modules_in_another_order_get_their_own_moments(name, same):
    model = Model()
    optimizer = OPTIMIZERS[name](model.parameters())
    step(model, optimizer)
    tree = through_files(optimizer_state_by_name(model, optimizer))

    turned = Model(turned=True, seed=5)
    turned.load_state_dict(copy.deepcopy(model.state_dict()))
    resumed = OPTIMIZERS[name](turned.parameters())
    load_optimizer_state_by_name(turned, resumed, tree)
    step(model, optimizer)
    step(turned, resumed)
    for key, value in model.state_dict().items():
        assert same(turned.state_dict()[key], value)


def grouped(model, order=(0, 1)):
    groups = [
        {"params": list(model.first.parameters()), "lr": 0.1, "initial_lr": 0.5},
        {"params": list(model.second.parameters()), "lr": 0.2, "weight_decay": 0.3},
    ]
    return torch.optim.SGD([groups[i] for i in order], lr=1.0, momentum=0.9)


def test_groups_are_matched_by_their_names():
    model = Model()
    optimizer = grouped(model)
    step(model, optimizer)
    tree = through_files(optimizer_state_by_name(model, optimizer))
    resumed = grouped(model, order=(1, 0))
    for group in resumed.param_groups:
        group["lr"] = 9.0
    load_optimizer_state_by_name(model, resumed, tree)
    assert [group["lr"] for group in resumed.param_groups] == [0.2, 0.1]
    assert resumed.param_groups[1]["initial_lr"] == 0.5
    assert resumed.param_groups[0]["weight_decay"] == 0.3
    assert resumed.param_groups[0]["params"][0] is model.second.weight


def test_missing_and_unexpected_parameters_are_named():
    model = Model()
    tree = optimizer_state_by_name(model, torch.optim.SGD(model.parameters(), lr=1.0))
    other = Model()
    other.third = nn.Linear(2, 2)
    del other.first
    with pytest.raises(CheckpointError) as caught:
        load_optimizer_state_by_name(
            other, torch.optim.SGD(other.parameters(), lr=1.0), tree
        )
    message = str(caught.value)
    assert "not in the checkpoint: third.bias, third.weight" in message
    assert "only in the checkpoint: first.bias, first.weight" in message


def test_several_optimizers_keep_their_keys(same):
    model = Model()

    def build(model):
        return {
            "a": torch.optim.AdamW(model.first.parameters(), lr=0.1),
            "b": torch.optim.SGD(model.second.parameters(), lr=0.2, momentum=0.9),
        }

    optimizers = build(model)
    for optimizer in optimizers.values():
        step(model, optimizer)
    tree = through_files(optimizer_state_by_name(model, optimizers))
    resumed = build(model)
    load_optimizer_state_by_name(model, resumed, tree)
    for key, optimizer in optimizers.items():
        assert same(resumed[key].state_dict(), optimizer.state_dict())
    with pytest.raises(CheckpointError, match="one optimizer and the run has several"):
        load_optimizer_state_by_name(model, optimizers["a"], tree)


def test_a_parameter_outside_the_model_is_refused_when_saving():
    model = Model()
    stray = nn.Parameter(torch.zeros(5))
    optimizer = torch.optim.SGD([*model.parameters(), stray], lr=0.1)
    with pytest.raises(CheckpointError, match=r"parameter 4 of .* shape \[5\]"):
        optimizer_state_by_name(model, optimizer)


def test_tied_weights_are_known_by_each_of_their_names():
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    model[1].weight = model[0].weight
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model(torch.randn(2, 3)).sum().backward()
    optimizer.step()
    tree = optimizer_state_by_name(model, optimizer)
    tree["groups"][0]["params"] = ["1.weight", "0.bias", "1.bias"]
    for key in ("state", "parameters"):
        tree[key]["1.weight"] = tree[key].pop("0.weight")
    resumed = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    load_optimizer_state_by_name(model, resumed, tree)
    moment = resumed.state[model[0].weight]["momentum_buffer"]
    assert torch.equal(moment, optimizer.state[model[0].weight]["momentum_buffer"])


class Wide(torch.optim.Optimizer):
    """Keeps 32-bit moments of 16-bit parameters."""

    def __init__(self, params, lr):
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure=None):
        with torch.enable_grad():
            closure()
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                moment = state.setdefault("moment", torch.zeros_like(p).float())
                moment.mul_(0.9).add_(p.grad.float())
                p.sub_(group["lr"] * moment.to(p.dtype))


def test_state_wider_than_its_parameter_keeps_its_bits(same):
    model = nn.Linear(3, 3).bfloat16()
    optimizer = Wide(model.parameters(), 0.1)

    def closure():
        model(torch.ones(2, 3, dtype=torch.bfloat16)).square().sum().backward()

    optimizer.step(closure)
    tree = through_files(optimizer_state_by_name(model, optimizer))
    resumed = Wide(model.parameters(), 0.1)
    load_optimizer_state_by_name(model, resumed, tree)
    assert same(
        resumed.state[model.weight]["moment"], optimizer.state[model.weight]["moment"]
    )
