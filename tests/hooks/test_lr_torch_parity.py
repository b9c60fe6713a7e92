"""The policy OneCycle against torch's own scheduler, for rates and momenta."""

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler

from devrun.hooks.schedules.torch_scheduler import build_lr_hook, build_momentum_hook
from tests.support.runs import TracedRun

STEPS = 24


@pytest.mark.parametrize(
    ("options", "of_rates"),
    [
        ({"pct_start": 0.4}, {}),
        (
            {"three_phase": True, "anneal_strategy": "linear", "pct_start": 0.25},
            {"div_factor": 10.0, "final_div_factor": 100.0},
        ),
    ],
)
@pytest.mark.parametrize(
    "make",
    [
        lambda m: torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9),
        lambda m: torch.optim.Adam(m.parameters(), lr=0.1),
    ],
    ids=["momentum", "betas"],
)
def test_one_cycle_equals_torch(make, options, of_rates):
    of_rates = {"max_lr": 0.4, **of_rates}
    loop = TracedRun(
        build_lr_hook({"policy": "OneCycle", **of_rates, **options}),
        build_momentum_hook({"policy": "OneCycle", **options}),
        max_iters=STEPS,
        optimizer=make,
    ).run()
    optimizer = make(nn.Linear(3, 2))
    scheduler = lr_scheduler.OneCycleLR(
        optimizer, total_steps=STEPS, **of_rates, **options
    )
    rates, momenta = [], []
    for _ in range(STEPS):
        group = optimizer.param_groups[0]
        rates.append(group["lr"])
        momenta.append(group["momentum"] if "momentum" in group else group["betas"][0])
        optimizer.step()
        scheduler.step()
    assert loop.first_lrs == pytest.approx(rates, rel=1e-9)
    assert loop.first_momenta == pytest.approx(momenta, rel=1e-9)
