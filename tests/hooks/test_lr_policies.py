"""Every learning-rate policy, value by value, against formulas written here."""

import math

import pytest

from devrun.hooks.schedules.torch_scheduler import build_lr_hook
from tests.support.runs import TracedRun

EPOCHS, LENGTH = 6, 5
ITERS = EPOCHS * LENGTH
BASE = 0.1


def cos(start, end, f, w=1.0):
    return end + 0.5 * w * (start - end) * (1 + math.cos(math.pi * f))


def restarts(p, total):
    half = total // 2  # periods [total/2, total/2], weights [1, 0.5]
    if p < half:
        return cos(BASE, 0.01, p / half)
    return cos(BASE, 0.01, (p - half) / half, 0.5)


def flat(p, total):
    start = round(total * 0.5)
    return BASE if p < start else cos(BASE, 0.02, (p - start) / (total - start))


POLICIES = {
    "fixed": (lambda total: {}, lambda p, total: BASE),
    "step": (
        lambda total: {"step": 2, "gamma": 0.5},
        lambda p, t: BASE * 0.5 ** (p // 2),
    ),
    "step list": (
        lambda total: {"policy": "step", "step": [4, 1], "gamma": 0.5},
        lambda p, t: BASE * 0.5 ** ((p >= 1) + (p >= 4)),
    ),
    "step min": (
        lambda total: {"policy": "step", "step": 1, "min_lr": 0.005},
        lambda p, t: max(BASE * 0.1**p, 0.005),
    ),
    "exp": (lambda total: {"gamma": 0.9}, lambda p, t: BASE * 0.9**p),
    "poly": (
        lambda total: {"power": 2.0, "min_lr": 0.01},
        lambda p, t: 0.09 * (1 - p / t) ** 2 + 0.01,
    ),
    "inv": (
        lambda total: {"gamma": 0.3, "power": 1.5},
        lambda p, t: BASE / (1 + 0.3 * p) ** 1.5,
    ),
    "CosineAnnealing": (
        lambda total: {"min_lr": 0.01},
        lambda p, t: cos(BASE, 0.01, p / t),
    ),
    "CosineAnnealing ratio": (
        lambda total: {"policy": "CosineAnnealing", "min_lr_ratio": 0.2},
        lambda p, t: cos(BASE, 0.02, p / t),
    ),
    "LinearAnnealing": (
        lambda total: {"min_lr_ratio": 0.1},
        lambda p, t: BASE + (0.01 - BASE) * p / t,
    ),
    "FlatCosineAnnealing": (
        lambda total: {"start_percent": 0.5, "min_lr_ratio": 0.2},
        flat,
    ),
    "CosineRestart": (
        lambda total: {
            "periods": [total // 2, total // 2],
            "restart_weights": [1, 0.5],
            "min_lr": 0.01,
        },
        restarts,
    ),
}

WARMUPS = {
    "none": ({}, 0, lambda i: 1.0),
    "constant": (
        {"warmup": "constant", "warmup_iters": 7, "warmup_ratio": 0.2},
        7,
        lambda i: 0.2,
    ),
    "linear": (
        {"warmup": "linear", "warmup_iters": 7, "warmup_ratio": 0.2},
        7,
        lambda i: 0.2 + 0.8 * i / 7,
    ),
    "exp": (
        {"warmup": "exp", "warmup_iters": 7, "warmup_ratio": 0.2},
        7,
        lambda i: 0.2 ** (1 - i / 7),
    ),
    "two epochs": (
        {"warmup": "linear", "warmup_iters": 2, "warmup_by_epoch": True},
        2 * LENGTH,
        lambda i: 0.1 + 0.9 * i / (2 * LENGTH),
    ),
}


@pytest.mark.parametrize("runs", ["by_epoch", "iter runner"])
@pytest.mark.parametrize(
    ("name", "warmup"),
    [
        *((name, "none") for name in POLICIES),
        *(("step", each) for each in WARMUPS if each != "none"),
    ],
)
def test_policy_gives_the_closed_formula(name, warmup, runs):
    arguments, formula = POLICIES[name]
    extra, length, factor = WARMUPS[warmup]
    by_epoch = runs == "by_epoch"
    total = EPOCHS if by_epoch else ITERS
    cfg = {"policy": name.split()[0], **arguments(total), **extra, "by_epoch": by_epoch}
    limit = {"max_iters": ITERS} if runs == "iter runner" else {"max_epochs": EPOCHS}

    loop = TracedRun(build_lr_hook(cfg), length=LENGTH, **limit).run()

    expected = []
    for i in range(ITERS):
        value = formula(i // LENGTH if by_epoch else i, total)
        expected.append(value * factor(i) if i < length else value)
    assert loop.first_lrs == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("anneal", ["cos", "linear"])
@pytest.mark.parametrize("gamma", [1, 0.5])
def test_cyclic_rises_and_falls_each_cycle(anneal, gamma):
    cfg = {
        "policy": "cyclic",
        "target_ratio": [10, 0.1],
        "cyclic_times": 3,
        "step_ratio_up": 0.4,
        "anneal_strategy": anneal,
        "gamma": gamma,
    }
    loop = TracedRun(build_lr_hook(cfg), max_epochs=EPOCHS, length=LENGTH).run()

    def between(start, end, f):
        return cos(start, end, f) if anneal == "cos" else start + (end - start) * f

    expected = []
    for i in range(ITERS):
        cycle, at = divmod(i, 10)  # 30 iterations, 3 cycles, 4 of 10 upwards
        peak = BASE + (10 * BASE - BASE) * gamma**cycle
        if at < 4:
            expected.append(between(BASE, peak, at / 4))
        else:
            expected.append(between(peak, 0.1 * BASE, (at - 4) / 6))
    assert loop.first_lrs == pytest.approx(expected, rel=1e-12)


def test_one_cycle_takes_its_peak_and_length_from_the_arguments():
    cfg = {"policy": "OneCycle", "max_lr": 0.5, "total_steps": 40, "pct_start": 0.25}
    loop = TracedRun(build_lr_hook(cfg), max_epochs=EPOCHS, length=LENGTH).run()
    low, end = 0.5 / 25, 0.5 / 25 / 1e4
    expected = [
        cos(low, 0.5, i / 9) if i <= 9 else cos(0.5, end, (i - 9) / 30)
        for i in range(ITERS)
    ]
    assert loop.first_lrs == pytest.approx(expected, rel=1e-12)


def test_warmup_works_in_an_iteration_run_with_a_fixed_policy_by_epoch():
    cfg = {"policy": "fixed", "warmup": "constant", "warmup_iters": 2}
    loop = TracedRun(build_lr_hook(cfg), max_iters=4).run()
    assert loop.first_lrs == pytest.approx([0.01, 0.01, 0.1, 0.1])
