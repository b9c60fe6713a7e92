"""Momentum policies, value by value, against formulas written here."""

import math

import pytest
import torch

from devrun.errors import ConfigError
from devrun.hooks.schedules.hook import MomentumUpdaterHook
from devrun.hooks.schedules.torch_scheduler import build_lr_hook, build_momentum_hook
from tests.support.runs import TracedRun

EPOCHS, LENGTH = 4, 5
ITERS = EPOCHS * LENGTH
BASE = 0.9


def cos(start, end, f):
    return end + 0.5 * (start - end) * (1 + math.cos(math.pi * f))


def adam(model):
    return torch.optim.Adam(model.parameters(), lr=0.1, betas=(0.9, 0.99))


POLICIES = {
    "step": ({"step": 2}, lambda p, t: BASE * 0.5 ** (p // 2)),
    "step list": (
        {"step": [1, 3], "gamma": 0.9, "min_momentum": 0.8},
        lambda p, t: max(BASE * 0.9 ** ((p >= 1) + (p >= 3)), 0.8),
    ),
    "CosineAnnealing": ({"min_momentum": 0.5}, lambda p, t: cos(BASE, 0.5, p / t)),
    "LinearAnnealing": (
        {"min_momentum_ratio": 0.5},
        lambda p, t: BASE + (0.45 - BASE) * p / t,
    ),
}
WARMUPS = {
    "none": ({}, 0, lambda i: 1.0),
    "constant": (
        {"warmup": "constant", "warmup_iters": 7, "warmup_ratio": 0.95},
        7,
        lambda i: 0.95,
    ),
    "linear": (
        {"warmup": "linear", "warmup_iters": 7, "warmup_ratio": 0.92},
        7,
        lambda i: 0.92 + 0.08 * i / 7,
    ),
    "exp": (
        {
            "warmup": "exp",
            "warmup_iters": 1,
            "warmup_ratio": 0.95,
            "warmup_by_epoch": True,
        },
        LENGTH,
        lambda i: 0.95 ** (1 - i / LENGTH),
    ),
}


@pytest.mark.parametrize("optimizer", [None, adam], ids=["momentum", "betas"])
@pytest.mark.parametrize("by_epoch", [True, False])
@pytest.mark.parametrize(
    ("name", "warmup"),
    [
        *((name, "none") for name in POLICIES),
        *(("step", each) for each in WARMUPS if each != "none"),
    ],
)
def test_policy_gives_the_closed_formula(name, warmup, by_epoch, optimizer):
    arguments, formula = POLICIES[name]
    extra, length, factor = WARMUPS[warmup]
    cfg = {"policy": name.split()[0], **arguments, **extra, "by_epoch": by_epoch}
    total = EPOCHS if by_epoch else ITERS
    hook = build_momentum_hook(cfg)
    loop = TracedRun(hook, max_epochs=EPOCHS, length=LENGTH, optimizer=optimizer).run()
    expected = []
    for i in range(ITERS):
        value = formula(i // LENGTH if by_epoch else i, total)
        expected.append(value / factor(i) if i < length else value)
    assert loop.first_momenta == pytest.approx(expected, rel=1e-12)


def test_cyclic_goes_down_to_the_ratio_and_up_again():
    hook = build_momentum_hook({"policy": "cyclic", "step_ratio_up": 0.5})
    loop = TracedRun(hook, max_epochs=EPOCHS, length=LENGTH).run()
    low = BASE * 0.85 / 0.95
    expected = [cos(BASE, low, i / 10) for i in range(10)]
    expected += [cos(low, BASE, i / 10) for i in range(10)]
    assert loop.first_momenta == pytest.approx(expected, rel=1e-12)


def test_one_cycle_takes_values_per_group():
    def groups(model):
        parts = [{"params": [model.weight]}, {"params": [model.bias]}]
        return torch.optim.SGD(parts, lr=0.1, momentum=0.9)

    cfg = {"policy": "OneCycle", "base_momentum": [0.8, 0.7], "max_momentum": 0.99}
    loop = TracedRun(build_momentum_hook(cfg), max_iters=10, optimizer=groups).run()
    assert loop.momenta[0] == [0.99, 0.99]
    assert loop.momenta[2] == pytest.approx([0.8, 0.7])


def test_several_optimizers_are_scheduled_by_name():
    def both(model):
        return {
            "w": torch.optim.SGD([model.weight], lr=0.1, momentum=0.8),
            "b": torch.optim.Adam([model.bias], lr=0.1),
        }

    cfg = {
        "policy": "step",
        "step": 1,
        "warmup": "constant",
        "warmup_iters": 1,
        "warmup_ratio": 0.95,
    }
    loop = TracedRun(
        build_momentum_hook(cfg), max_epochs=2, length=2, optimizer=both
    ).run()
    assert loop.momenta == [
        pytest.approx(row)
        for row in ([0.8 / 0.95, 0.9 / 0.95], [0.8, 0.9], [0.4, 0.45], [0.4, 0.45])
    ]
    one_cycle = {"policy": "OneCycle", "max_momentum": {"w": 0.9, "b": 0.97}}
    loop = TracedRun(build_momentum_hook(one_cycle), max_iters=4, optimizer=both).run()
    assert loop.momenta[0] == [0.9, 0.97]


def test_a_warmup_that_makes_a_beta_one_is_refused():
    cfg = {"policy": "step", "step": 1, "warmup": "constant", "warmup_iters": 2}
    with pytest.raises(ConfigError, match=r"betas\[0\] = 1, .*raise it"):
        TracedRun(build_momentum_hook(cfg), max_epochs=1, optimizer=adam).run()


@pytest.mark.parametrize("policy", ["step", "OneCycle"])
def test_an_optimizer_without_momentum_is_refused(policy):
    arguments = {"step": 1} if policy == "step" else {}
    loop = TracedRun(
        build_momentum_hook({"policy": policy, **arguments}),
        max_epochs=1,
        optimizer=lambda m: torch.optim.Adagrad(m.parameters()),
    )
    with pytest.raises(ConfigError, match="Adagrad has neither momentum nor betas"):
        loop.run()


@pytest.mark.parametrize(
    ("cfg", "words"),
    [
        ({"step": 1}, "needs a 'policy'; known: .*OneCycle"),
        ({"policy": "stp"}, "no momentum policy 'stp'; did you mean 'Step'"),
        ({"policy": "CosineAnnealingLR", "T_max": 1}, "did you mean 'CosineAnnealing'"),
        ({"policy": "LinearAnnealing"}, "exactly one of min_momentum"),
        ({"policy": "step", "step": 1, "min_lr": 1}, "unexpected argument 'min_lr'"),
        ({"policy": "OneCycle", "by_epoch": True}, "by_epoch must be False"),
    ],
)
def test_a_mistake_in_momentum_config_is_one_line(cfg, words):
    with pytest.raises(ConfigError, match=words) as caught:
        build_momentum_hook(cfg)
    assert "\n" not in str(caught.value)


def test_a_subclass_needs_only_get_momentum():
    class Half(MomentumUpdaterHook):
        def get_momentum(self, runner, base_momentum):
            return base_momentum / 2

    loop = TracedRun(Half(), build_lr_hook({"policy": "fixed"}), max_epochs=1).run()
    assert set(loop.first_momenta) == {0.45}
