"""What a run says before it trains: model, schedule, FLOPs; the repr of a runner."""

from __future__ import annotations

import re

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset

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


def test_the_flops_are_those_of_one_update():
    net = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 2))
    (line,) = told(make_runner(model=net)).matching("^FLOPs")
    # forward 2 * 3 * (16 + 16); backward the same for the weights, and for the
    # second layer's input
    forward = 2 * 3 * 2 * 8
    total = 2 * forward + 2 * forward + forward
    assert f"{total} FLOP in an update, {total / 3:.3g} FLOP a sample" in line


def test_an_attempt_that_ran_out_of_memory_is_not_counted():
    class Short(nn.Linear):
        def forward(self, x):
            y = super().forward(x)
            return y if len(x) < 2 else y + torch.empty(2**58)

    policy = {"micro_batch": "auto"}
    runner = make_runner(model=Short(2, 2), optimizer_config=policy)
    (line,) = told(runner).matching("^FLOPs")
    assert f"{2 * 3 * 2 * 2 * 2} FLOP in an update" in line


class Counts(nn.Module):
    """Has everything that a second look would change."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Dropout(0.5), nn.Flatten()
        )
        self.rnn = nn.LSTM(16, 6, batch_first=True)
        self.head = nn.Linear(6, 2)
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        steps = self.body(x).reshape(len(x), 4, -1)
        return self.head(self.rnn(steps)[0][:, -1])


def trained(monkeypatch, *, count):
    if not count:
        monkeypatch.setattr("devrun.runners.loops.obstacle", lambda runner: "no")
    torch.manual_seed(1)
    net = Counts()
    data = TensorDataset(torch.randn(12, 1, 6, 6), torch.arange(12) % 2)
    runner = make_runner(model=net, seed=3, length=1)
    (line,) = told(runner, DataLoader(data, batch_size=4)).matching("^FLOPs")
    assert ("not counted" in line) != count
    return net


def test_counting_runs_nothing_twice_and_changes_no_bit(monkeypatch):
    counted, plain = (trained(monkeypatch, count=count) for count in (True, False))
    assert counted.calls == plain.calls == 3
    for name, value in counted.state_dict().items():
        assert torch.equal(value, plain.state_dict()[name]), name


class Compiled(nn.Module):
    """Has what a second look would change, and maybe what it would not see."""

    def __init__(self, breaks=None):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Dropout(0.5), nn.Flatten()
        )
        self.head = nn.Linear(64, 2)
        self.calls, self.breaks = 0, breaks

    def forward(self, x):
        self.calls += 1
        if self.breaks == "print":
            print("here")
        if self.breaks == "checkpoint":
            return checkpoint(self.body, x, use_reentrant=False) @ self.head.weight.T
        return self.head(self.body(x))


def compiled(device="cpu", *, breaks=None, count=True, **policy):
    torch.compiler.reset()
    torch.manual_seed(1)
    net = Compiled(breaks)
    data = TensorDataset(torch.randn(12, 1, 6, 6), torch.arange(12) % 2)
    runner = make_runner(
        model=net, seed=3, length=1, device=device, optimizer_config=policy
    )
    with pytest.MonkeyPatch.context() as patch:
        if not count:
            patch.setattr("devrun.runners.loops.obstacle", lambda runner: "no")
        lines = told(runner, DataLoader(data, batch_size=3))
    return net, lines.matching("^FLOPs")[0], lines.matching("^compile: ")


@pytest.mark.filterwarnings("ignore")  # of torch's tracer, about its own insides
@pytest.mark.parametrize("setting", [{}, {"regions": True}])
def test_the_flops_of_a_compiled_model_are_those_of_the_plain_one(setting):
    device = {"type": "cpu", "compile": {"backend": "aot_eager", **setting}}
    plain, said, _ = compiled(cumulative_iters=3)
    net, traced, compilations = compiled(device, cumulative_iters=3)
    without, left_out, as_without = compiled(device, cumulative_iters=3, count=False)
    assert traced == said and "GFLOP" not in said and "kFLOP in an update" in said
    assert "not counted" in left_out
    assert net.calls == plain.calls == without.calls == 4
    assert [line.split(" in ")[0] for line in compilations] == [
        line.split(" in ")[0] for line in as_without
    ]
    for name, value in net.state_dict().items():
        assert torch.equal(value, without.state_dict()[name]), name


@pytest.mark.filterwarnings("ignore")
def test_what_cannot_be_traced_as_a_whole_is_not_counted():
    device = {"type": "cpu", "compile": {"backend": "aot_eager"}}
    for breaks, why in (
        ("print", "Failed to trace builtin operator"),
        ("checkpoint", "it has operations that contain others"),
    ):
        net, said, _ = compiled(device, breaks=breaks)
        assert "not counted: the model is compiled, and cannot be traced" in said
        assert why in said and "\n" not in said and net.calls == 4
    with torch.compiler.set_stance("force_eager"):
        net, said, _ = compiled(device)
    assert "nothing is compiled here" in said and net.calls == 4


class Branches(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(2, 2)

    def forward(self, x):
        def turned(a):
            return a.cos()

        return self.head(torch.cond(x.sum() > 0, torch.sin, turned, (self.head(x),)))


class CallsCompiled(Branches):
    def forward(self, x):
        self.graphs = getattr(self, "graphs", 0)

        def backend(graph, inputs):
            self.graphs += 1
            return graph.forward

        return torch.compile(torch.nn.functional.relu, backend=backend)(self.head(x))


@pytest.mark.filterwarnings("ignore")  # of torch's tracer, about its own insides
@pytest.mark.parametrize("kind", [Branches, CallsCompiled])
def test_what_torch_traces_by_itself_runs_as_without_counting(monkeypatch, kind):
    weights = []
    for count in (True, False):
        torch.compiler.reset()
        torch.manual_seed(1)
        net = kind()
        runner = make_runner(model=net, length=1)
        if not count:
            monkeypatch.setattr("devrun.runners.loops.obstacle", lambda runner: "no")
        (line,) = told(runner).matching("^FLOPs")
        assert ("not counted" in line) != count
        weights.append((net.head.weight.detach(), getattr(net, "graphs", None)))
    assert torch.equal(weights[0][0], weights[1][0])
    assert weights[0][1] == weights[1][1]


@pytest.mark.parametrize(
    ("device", "why"),
    [
        ({"type": "ipu", "emulate": True}, "the device does not show"),
    ],
)
def test_where_they_cannot_be_counted_the_reason_is_said(device, why):
    runner = make_runner(device=device, length=1)
    (line,) = told(runner).matching("^FLOPs")
    assert line.startswith(f"FLOPs: not counted: {why}")
    runner.close()


def test_a_formula_that_fails_does_not_end_the_run(monkeypatch):
    from torch.utils import flop_counter

    def broken(*args, **kwargs):
        raise TypeError("no formula for that")

    known = flop_counter.flop_registry
    monkeypatch.setattr(
        flop_counter, "flop_registry", dict.fromkeys(known, broken), raising=True
    )
    runner = make_runner(length=1)
    (line,) = told(runner).matching("^FLOPs")
    assert line.startswith("FLOPs: none counted, without aten.")
    assert runner.iter == 4


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
