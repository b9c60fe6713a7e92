"""`devrun train --find-lr`: a learning-rate range test."""

import json
import logging
import math
import re
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from devrun import IterBasedRunner
from devrun.hooks.lr_range import LrCurve, LrRangeHook
from devrun.runners.lr_range import find_lr


def listing(folder):
    return {p: p.stat().st_mtime_ns for p in Path(folder).rglob("*") if p.is_file()}


@pytest.mark.parametrize("device", [["cpu"], ["ipu", "--emulate"]])
def test_it_says_a_rate_and_touches_nothing_else(config, train, device):
    groups = {"type": "SGD", "lr": 0.1, "paramwise_cfg": {"bias_lr_mult": 2.0}}
    path = config(optimizer=groups)
    words = (path, "--seed", "1", "--no-progress", "--device", *device)
    assert train(*words)[0] == 0
    logger = logging.getLogger("devrun")  # of this process: the run's is over
    for handler in list(logger.handlers):
        logger.removeHandler(handler)
        handler.close()
    before = listing("work_dirs/small")
    status, out, err = train(*words, "--find-lr")
    assert status == 0, err
    (line,) = out.splitlines()
    found = re.match(r"suggested learning rate: (\S+) \((\d+) updates from 1e-07", line)
    assert 1e-3 < float(found[1]) < 10
    after = listing("work_dirs/small")
    assert [p.name for p in after.keys() - before.keys()] == ["lr_find.json"]
    assert {p: after[p] for p in before} == before
    assert sorted(p.name for p in Path("work_dirs").iterdir()) == ["small"]
    facts = json.loads(Path("work_dirs/small/lr_find.json").read_text())
    assert len(facts["lr"]) == len(facts["loss"]) == int(found[2])
    assert f"{facts['suggestion']:.3g}" == found[1]
    ratio = facts["lr"][1] / facts["lr"][0]
    assert ratio == pytest.approx(1e8 ** (1 / 99))
    assert train(*words, "--find-lr")[1] == out  # from the same weights and batches


def test_weights_optimizer_and_streams_are_put_back():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 16), nn.BatchNorm1d(16), nn.Linear(16, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.9)
    data = TensorDataset(torch.randn(64, 4), torch.arange(64) % 3)
    loader = DataLoader(data, batch_size=8, shuffle=True)
    runner = IterBasedRunner(
        model,
        optimizer=optimizer,
        loss=nn.CrossEntropyLoss(),
        max_iters=40,
        device="cpu",
        optimizer_config={"nonfinite": "ignore"},
    )
    weights = {name: value.clone() for name, value in model.state_dict().items()}
    stream = torch.get_rng_state()
    curve = find_lr(runner, [loader], LrRangeHook(steps=40))
    runner.close()
    assert len(curve.lr) > 10
    assert max(curve.loss) > curve.loss[0]  # it did train, and too fast
    state = model.state_dict()
    assert all(torch.equal(state[name], value) for name, value in weights.items())
    assert optimizer.param_groups[0]["lr"] == 0.3
    assert all(not one for one in optimizer.state.values())
    assert torch.equal(torch.get_rng_state(), stream)


def test_the_suggestion_is_the_steepest_descent():
    curve = LrCurve()
    rates = [10 ** (-6 + at / 10) for at in range(70)]
    for lr in rates:  # falls around 1e-3, explodes from 0.1 on
        curve.add(lr, 2 - 1 / (1 + (1e-3 / lr) ** 2) + (lr / 0.1) ** 3)
    assert 1e-3 < curve.suggestion < 5e-3  # smoothing is late
    assert curve.exploded
    flat = LrCurve()
    for lr in rates:
        flat.add(lr, 1.0)
    assert flat.suggestion is None
    assert not flat.exploded
    flat.add(1.0, math.nan)
    assert flat.exploded


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--dry-run"], "--find-lr and --dry-run clash"),
        (["--resume-from", "auto"], "--find-lr and --resume-from clash"),
        (["--overwrite"], "--find-lr and --overwrite clash"),
        (["--cfg-options", "optimizer.lr=0"], "no learning rate above 0"),
    ],
)
def test_what_has_no_use_is_refused(config, train, words, said):
    status, _, err = train(config(), "--find-lr", "--no-progress", *words)
    assert status == 2
    assert said in err.splitlines()[-1]
    assert not Path("work_dirs").exists()
