"""What a forward pass does on the host is frozen in a graph, and said with its line."""

import inspect
import itertools
import sys

import pytest
import torch
from torch import nn

from devrun.hooks import EvalHook
from tests.ipu.harness import Net, ipu, loader, make, net, train


class Warm(Net):
    def __init__(self):
        super().__init__()
        self.step = 0

    def forward(self, x):
        self.step += 1
        return super().forward(x) * min(1.0, self.step / 10)


def frozen(capsys):
    lines = capsys.readouterr().err.splitlines()
    return [line for line in lines if "only while the graph is captured" in line]


def test_a_counter_of_the_model_is_said_once_for_both_graphs(capsys):
    runner, _ = make(ipu(), model=Warm(), epochs=1)
    runner.register_hook(EvalHook(loader(samples=16)), "LOW")
    runner.run([loader()], [("train", 1)])
    runner.close()
    (told,) = frozen(capsys)
    assert "changes Warm.step from 0 to 1 in" in told
    assert "register_buffer" in told


def test_a_buffer_instead_counts_on_the_device(capsys):
    class Counting(Net):
        def __init__(self):
            super().__init__()
            self.register_buffer("step", torch.zeros(()))

        def forward(self, x):
            self.step += 1
            return super().forward(x)

    runner, _ = train(ipu(), model=Counting(), epochs=1)
    assert runner.model.step == 16
    assert frozen(capsys) == []


@pytest.mark.parametrize("options", [{}, {"norm": True, "dropout": 0.1}])
def test_ordinary_models_have_no_warning(capsys, options):
    edges = [{"layer_to_call": "head", "ipu_id": 1}]
    train(
        ipu(train_split_edges=edges),
        model=net(**options),
        optimizer_config={"cumulative_iters": 3},
        epochs=1,
    )
    assert frozen(capsys) == []


def test_a_state_in_the_loss_is_seen_too(capsys):
    class Annealed(nn.CrossEntropyLoss):
        calls = 0

        def __init__(self):
            super().__init__()
            self.calls = 0

        def forward(self, x, y):
            self.calls += 1
            return super().forward(x, y)

    train(ipu(), loss=Annealed(), epochs=1)
    (told,) = frozen(capsys)
    assert "changes Annealed.calls from 0 to 1" in told


TURNS = itertools.cycle([1.0, 0.5, 0.25])


class Turns(Net):
    def __init__(self):
        super().__init__()
        self.cache, self.counts = {}, {}

    def forward(self, x):
        if "scale" not in self.cache:
            self.cache["scale"] = 2.0
        self.counts["calls"] = self.counts.get("calls", 0) + 1
        return super().forward(x * self.cache["scale"] * next(TURNS))


@pytest.mark.skipif(sys.version_info >= (3, 14), reason="no cycle says where it is")
def test_a_global_cycle_and_a_counter_are_said_and_a_cache_is_not(capsys):
    train(ipu(), model=Turns(), epochs=1)
    first, line = frozen(capsys), inspect.getsourcelines(Turns.forward)[1]
    said = [told.partition(" in Python")[0].partition(" at ")[2] for told in first]
    assert said == [
        f"{__file__}:{line + 4} draws from the global TURNS",
        f"{__file__}:{line + 3} changes Turns.counts",
    ]
