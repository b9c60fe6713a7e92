"""Who does the update: the adapter, the model, or a hook of the user's."""

import logging

import pytest
import torch
from torch import nn

from devrun.errors import ConfigError, UnsupportedFeatureError
from tests.support.cpu import Prepared, batch, net, same, weights


class Mmcv(nn.Module):
    """MMCV's contract; `own` says how much of the update it does."""

    def __init__(self, own="nothing"):
        super().__init__()
        self.net = net()
        self.own = own
        self.given = None
        self.calls = 0

    def train_step(self, data, optimizer):
        self.given, self.calls = optimizer, self.calls + 1
        x, y = data
        loss = nn.functional.cross_entropy(self.net(x), y)
        if self.own != "nothing":
            loss.backward()
            if self.own == "all" or self.calls % 2 == 0:
                for one in (
                    optimizer.values() if isinstance(optimizer, dict) else [optimizer]
                ):
                    one.step()
                    one.zero_grad()
        return {"loss": loss, "log_vars": {"loss": loss.item()}, "num_samples": len(x)}


def by_hand(steps):
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        optimizer.zero_grad()
        x, y = batch()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    return weights(model)


@pytest.mark.parametrize("own", ["nothing", "all"])
def test_each_step_updates_once_whoever_does_it(own):
    run = Prepared(Mmcv(own))
    for _ in range(3):
        run.step()
    assert same(weights(run.module), by_hand(3))
    assert run.module.calls == 3
    assert run.module.given is run.optimizer


def test_a_model_that_accumulates_by_itself_is_left_alone():
    run = Prepared(Mmcv("every second time"))
    before = weights(run.module)
    run.step()
    assert same(weights(run.module), before)
    run.step()
    assert not same(weights(run.module), before)


def test_several_optimizers_are_the_models_affair():
    model = Mmcv("all")
    parts = {
        "first": torch.optim.SGD(model.net[0].parameters(), lr=0.1),
        "second": torch.optim.SGD(model.net[2].parameters(), lr=0.1),
    }
    run = Prepared(model, optimizer=parts)
    run.step()
    assert same(weights(run.module), by_hand(1))


def test_several_optimizers_that_nobody_steps_are_refused():
    model = Mmcv()
    parts = {"only": torch.optim.SGD(model.parameters(), lr=0.1)}
    with pytest.raises(ConfigError, match="steps none of them"):
        Prepared(model, optimizer=parts).step()


def test_several_optimizers_and_an_optimizer_config_clash():
    model = Mmcv()
    parts = {"only": torch.optim.SGD(model.parameters(), lr=0.1)}
    with pytest.raises(ConfigError, match="only"):
        Prepared(model, optimizer=parts, owner="adapter")


def test_two_owners_are_refused_at_the_first_step():
    with pytest.raises(ConfigError, match="remove one of the two"):
        Prepared(Mmcv("all"), owner="adapter").step()


def test_without_an_optimizer_nothing_is_updated_and_that_is_said(caplog):
    run = Prepared(Mmcv(), optimizer=None)
    before = weights(run.module)
    with caplog.at_level(logging.WARNING, "devrun"):
        run.step()
        run.step()
    assert same(weights(run.module), before)
    assert caplog.text.count("nothing updates the weights of Mmcv") == 1


def test_a_users_hook_gets_the_loss_with_its_graph():
    run = Prepared(owner="hook", grad_clip={"max_norm": 1.0})
    before = weights(run.module)
    outputs = run.step()
    assert outputs.loss.requires_grad
    assert same(weights(run.module), before)
    outputs.loss.backward()
    run.optimizer.step()
    assert same(weights(run.module), by_hand(1))


@pytest.mark.parametrize("policy", [{"accumulate": 2}, {"nonfinite": "skip"}])
def test_what_a_users_hook_would_not_do_is_refused(policy):
    with pytest.raises(UnsupportedFeatureError):
        Prepared(owner="hook", **policy)


def test_watching_the_first_step_leaves_no_hook_on_the_optimizer():
    run = Prepared()
    run.step()
    assert not run.optimizer._optimizer_step_post_hooks
    assert not run.optimizer._optimizer_step_pre_hooks


def test_the_anomalous_parameters_are_named_once(caplog):
    class Unused(nn.Module):
        def __init__(self):
            super().__init__()
            self.used, self.idle = nn.Linear(4, 3), nn.Linear(4, 3)

        def forward(self, x):
            return self.used(x)

    run = Prepared(Unused(), detect_anomalous_params=True)
    with caplog.at_level(logging.ERROR, "devrun"):
        run.step()
        run.step()
    assert caplog.text.count("idle.weight with shape (3, 4)") == 1
    assert "used.weight" not in caplog.text
