"""What a run says before it trains: model, schedule; the repr of a runner."""

from __future__ import annotations

import re

from torch import nn

from devrun.hooks import EvalHook
from devrun.runners import EpochBasedRunner
from tests.support.points import loader as points
from tests.support.points import make_runner


def told(runner, *loaders, workflow=(("train", 1),)):
    runner.run(list(loaders) or [points()], list(workflow))
    return runner.lines


def test_the_summary_counts_parameters_updates_and_samples():
    net = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 2))
    net[0].requires_grad_(False)
    policy = {"cumulative_iters": 2}
    lines = told(make_runner(model=net, optimizer_config=policy, device="cpu"))
    text = "\n".join(lines.messages)
    assert "run: EpochBasedRunner on cpu, host " in text
    assert "model: Sequential, 42 parameters (18 trainable)" in text
    assert (
        "schedule: 4 updates, 2 epochs, 6 samples an update, 12 samples in the data set"
    ) in text
    assert len(text.splitlines()) < 12


def test_parameters_without_a_shape_yet_are_no_trouble():
    class Lazy(nn.Module):
        def __init__(self):
            super().__init__()
            self.head = nn.LazyLinear(2)

        def forward(self, x):
            return self.head(x)

    runner = EpochBasedRunner(Lazy(), loss=nn.CrossEntropyLoss(), max_epochs=1)
    assert "take their shape from the first batch" in repr(runner)


def test_the_repr_says_what_is_trained_where_and_how_far_it_is(tmp_path):
    runner = make_runner(device="cpu", work_dir=tmp_path)
    runner.register_hook(EvalHook(points()))
    assert "epoch=0/2, iter=0," in repr(runner)
    told(runner)
    assert re.fullmatch(
        r"EpochBasedRunner\(Linear of 6 parameters \(6 trainable\), device=cpu, "
        r"epoch=2/2, iter=8/8, hooks=\[EvalHook\], work_dir='.*'\)",
        repr(runner),
    )


def test_a_runner_that_is_not_made_yet_has_a_repr():
    seen = []

    class Mine(EpochBasedRunner):
        def register_optimizer_hook(self, optimizer_config):
            seen.append(repr(self))
            super().register_optimizer_hook(optimizer_config)

    Mine(nn.Linear(2, 2), loss=nn.CrossEntropyLoss(), max_epochs=1)
    seen.append(repr(EpochBasedRunner.__new__(EpochBasedRunner)))
    assert "Mine(Linear of 6 parameters" in seen[0]
    assert "EpochBasedRunner object" in seen[1]
