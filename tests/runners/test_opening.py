"""What a run says before it trains: model and schedule."""

from torch import nn

from devrun.runners import EpochBasedRunner
from devrun.runners.loops import parameters_of
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
    schedule = "schedule: max_epochs 2, max_iters 4, samples an update: 6; "
    assert f"{schedule}data: train TensorDataset with 12 samples" in text
    assert len(text.splitlines()) < 12


def test_parameters_without_a_shape_yet_are_no_trouble():
    class Lazy(nn.Module):
        def __init__(self):
            super().__init__()
            self.head = nn.LazyLinear(2)

        def forward(self, x):
            return self.head(x)

    runner = EpochBasedRunner(Lazy(), loss=nn.CrossEntropyLoss(), max_epochs=1)
    assert "take their shape from the first batch" in parameters_of(runner.model)
