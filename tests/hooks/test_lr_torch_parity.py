"""The policies against torch.optim.lr_scheduler, where both have the schedule."""

from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler

from devrun.hooks.schedules.torch_scheduler import build_lr_hook, build_momentum_hook
from tests.support.runs import TracedRun

STEPS = 24
CASES: dict[str, tuple[dict[str, Any], str, dict[str, Any]]] = {
    "CyclicLR": (
        {"policy": "cyclic", "target_ratio": (5, 1), "cyclic_times": 2,
         "step_ratio_up": 0.25, "anneal_strategy": "linear"},
        "CyclicLR",
        {"base_lr": 0.1, "max_lr": 0.5, "step_size_up": 3, "step_size_down": 9,
         "cycle_momentum": False},
    ),
    "OneCycleLR": (
        {"policy": "OneCycle", "max_lr": 0.4},
        "OneCycleLR",
        {"max_lr": 0.4, "total_steps": STEPS, "cycle_momentum": False},
    ),
    "OneCycleLR, linear, three phases": (
        {"policy": "OneCycle", "max_lr": 0.4, "three_phase": True,
         "anneal_strategy": "linear", "pct_start": 0.25, "div_factor": 10.0,
         "final_div_factor": 100.0},
        "OneCycleLR",
        {"max_lr": 0.4, "total_steps": STEPS, "three_phase": True,
         "anneal_strategy": "linear", "pct_start": 0.25, "div_factor": 10.0,
         "final_div_factor": 100.0, "cycle_momentum": False},
    ),
}  # fmt: skip


def torch_rates(name: str, arguments: dict[str, Any]) -> list[float]:
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.1)
    scheduler = getattr(lr_scheduler, name)(optimizer, **arguments)
    rates = []
    for _ in range(STEPS):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return rates


@pytest.mark.parametrize("case", CASES)
def test_policy_equals_the_torch_scheduler(case: str) -> None:
    cfg, name, arguments = CASES[case]
    loop = TracedRun(build_lr_hook({**cfg, "by_epoch": False}), max_iters=STEPS).run()
    assert loop.first_lrs == pytest.approx(torch_rates(name, arguments), rel=1e-9)


@pytest.mark.parametrize("three_phase", [False, True])
@pytest.mark.parametrize(
    "make",
    [
        lambda m: torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9),
        lambda m: torch.optim.Adam(m.parameters(), lr=0.1),
    ],
    ids=["momentum", "betas"],
)
def test_one_cycle_momentum_equals_torch(make: Any, three_phase: bool) -> None:
    options = {"pct_start": 0.4, "three_phase": three_phase}
    loop = TracedRun(
        build_lr_hook({"policy": "OneCycle", "max_lr": 0.4, **options}),
        build_momentum_hook({"policy": "OneCycle", **options}),
        max_iters=STEPS,
        optimizer=make,
    ).run()
    optimizer = make(nn.Linear(3, 2))
    scheduler = lr_scheduler.OneCycleLR(
        optimizer, max_lr=0.4, total_steps=STEPS, **options
    )
    expected = []
    for _ in range(STEPS):
        group = optimizer.param_groups[0]
        expected.append(group["momentum"] if "momentum" in group else group["betas"][0])
        optimizer.step()
        scheduler.step()
    assert loop.first_momenta == pytest.approx(expected, rel=1e-9)
