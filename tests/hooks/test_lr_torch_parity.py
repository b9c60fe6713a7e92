"""The policies against torch.optim.lr_scheduler, where both have the schedule."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler

from devrun.hooks.schedules.build import build_lr_hook, build_momentum_hook
from tests.support.runs import TracedRun

STEPS = 24
CASES: dict[str, tuple[dict[str, Any], str, dict[str, Any]]] = {
    "StepLR": (
        {"policy": "step", "step": 5, "gamma": 0.3},
        "StepLR",
        {"step_size": 5, "gamma": 0.3},
    ),
    "MultiStepLR": (
        {"policy": "step", "step": [3, 11, 12], "gamma": 0.3},
        "MultiStepLR",
        {"milestones": [3, 11, 12], "gamma": 0.3},
    ),
    "ExponentialLR": (
        {"policy": "exp", "gamma": 0.8},
        "ExponentialLR",
        {"gamma": 0.8},
    ),
    "PolynomialLR": (
        {"policy": "poly", "power": 1.5},
        "PolynomialLR",
        {"total_iters": STEPS, "power": 1.5},
    ),
    "LinearLR": (
        {"policy": "LinearAnnealing", "min_lr_ratio": 0.25},
        "LinearLR",
        {"start_factor": 1.0, "end_factor": 0.25, "total_iters": STEPS},
    ),
    "LinearLR as warm-up": (
        {"policy": "fixed", "warmup": "linear", "warmup_iters": 6, "warmup_ratio": 0.2},
        "LinearLR",
        {"start_factor": 0.2, "total_iters": 6},
    ),
    "ConstantLR as warm-up": (
        {"policy": "fixed", "warmup": "constant", "warmup_iters": 6,
         "warmup_ratio": 0.2},
        "ConstantLR",
        {"factor": 0.2, "total_iters": 6},
    ),
    "CosineAnnealingLR": (
        {"policy": "CosineAnnealing", "min_lr": 0.02},
        "CosineAnnealingLR",
        {"T_max": STEPS, "eta_min": 0.02},
    ),
    "CosineAnnealingWarmRestarts": (
        {"policy": "CosineRestart", "periods": [8] * 3, "restart_weights": [1] * 3,
         "min_lr": 0.02},
        "CosineAnnealingWarmRestarts",
        {"T_0": 8, "eta_min": 0.02},
    ),
    "CosineAnnealingWarmRestarts, growing": (
        {"policy": "CosineRestart", "periods": [4, 8, 16], "restart_weights": [1] * 3,
         "min_lr": 0.02},
        "CosineAnnealingWarmRestarts",
        {"T_0": 4, "T_mult": 2, "eta_min": 0.02},
    ),
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


@pytest.mark.parametrize("case", CASES)
def test_the_torch_scheduler_itself_runs_as_a_policy(case: str) -> None:
    _, name, arguments = CASES[case]
    hook = build_lr_hook({"policy": name, "by_epoch": False, **arguments})
    loop = TracedRun(hook, max_iters=STEPS).run()
    assert loop.first_lrs == torch_rates(name, arguments)


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
