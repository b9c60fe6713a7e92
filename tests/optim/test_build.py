"""Optimizers from a config, one or several, and the names of their parameters."""

import copy

import pytest
import torch
from torch import nn

from devrun.config.tree import ConfigDict
from devrun.errors import UnknownNameError
from devrun.optim import (
    OPTIMIZER_BUILDERS,
    OPTIMIZERS,
    TORCH_OPTIMIZERS,
    DefaultOptimizerConstructor,
    build_optimizer,
    register_torch_optimizers,
)
from tests.support.strict import zip_strict


class Gan(nn.Module):
    def __init__(self):
        super().__init__()
        self.generator = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 2))
        self.discriminator = nn.Linear(2, 1)


def test_every_torch_optimizer_is_registered_once():
    for name in ("SGD", "Adam", "AdamW", "RMSprop", "Adagrad", "LBFGS", "RAdam"):
        assert name in TORCH_OPTIMIZERS
        assert OPTIMIZERS.get(name) is getattr(torch.optim, name)
    assert "Optimizer" not in OPTIMIZERS.module_dict
    before = dict(OPTIMIZERS.module_dict)
    assert register_torch_optimizers() == TORCH_OPTIMIZERS
    assert OPTIMIZERS.module_dict == before


def test_a_config_gives_the_same_optimizer_as_the_constructor_call():
    model = Gan()
    cfg = {"type": "SGD", "lr": 0.1, "momentum": 0.9, "weight_decay": 1e-4}
    built = build_optimizer(model, cfg)
    direct = torch.optim.SGD(
        model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4
    )
    assert type(built) is torch.optim.SGD
    assert built.state_dict() == direct.state_dict()
    same = zip_strict(built.param_groups[0]["params"], direct.param_groups[0]["params"])
    assert all(mine is theirs for mine, theirs in same)


def test_the_config_is_left_as_it_was():
    cfg = ConfigDict(
        type="SGD",
        lr=0.1,
        weight_decay=0.1,
        constructor="DefaultOptimizerConstructor",
        paramwise_cfg={"custom_keys": {"generator": {"lr_mult": 2}}},
    )
    before = copy.deepcopy(cfg.to_dict())
    build_optimizer(Gan(), cfg)
    build_optimizer(Gan(), cfg)
    assert cfg.to_dict() == before


def test_several_configs_give_one_optimizer_per_submodule():
    model = Gan()
    cfg = {
        "generator": {"type": "Adam", "lr": 1e-3},
        "discriminator": {"type": "SGD", "lr": 0.2},
    }
    built = build_optimizer(model, cfg)
    assert list(built) == ["generator", "discriminator"]
    assert isinstance(built["generator"], torch.optim.Adam)
    assert built["discriminator"].param_groups[0]["lr"] == 0.2
    for name, one in built.items():
        held = {id(param) for param in one.param_groups[0]["params"]}
        assert held == {id(param) for param in getattr(model, name).parameters()}


def test_an_optimizer_for_a_submodule_that_is_not_there_is_named():
    cfg = {"generater": {"type": "Adam"}, "discriminator": {"type": "SGD"}}
    with pytest.raises(UnknownNameError, match="did you mean 'generator'"):
        build_optimizer(Gan(), cfg)


def test_a_users_optimizer_and_constructor_are_found_by_name():
    class Slow(torch.optim.SGD):
        pass

    class Halving(DefaultOptimizerConstructor):
        def __call__(self, model):
            optimizer = super().__call__(model)
            optimizer.param_groups[0]["lr"] /= 2
            return optimizer

    OPTIMIZERS.register_module(module=Slow)
    OPTIMIZER_BUILDERS.register_module(module=Halving)
    try:
        cfg = {"type": "Slow", "lr": 0.2, "constructor": "Halving"}
        optimizer = build_optimizer(Gan(), cfg)
    finally:
        del OPTIMIZERS.module_dict["Slow"], OPTIMIZER_BUILDERS.module_dict["Halving"]
    assert isinstance(optimizer, Slow)
    assert optimizer.param_groups[0]["lr"] == 0.1
