"""HPU graphs in training: the same numbers, what a new shape does, what is refused."""

import inspect
import random

import numpy as np
import torch
from torch import nn

from devrun.errors import UnsupportedFeatureError
from tests.hpu.cases_counts import Planted
from tests.hpu.runs import close, device, loader, make, net, train
from tests.support.observe import Lines

MODES = ("lazy",)


def total(name):
    from habana_frameworks import emulator

    return emulator.report().totals.get(name, 0)


def normed(dropout=0.0):
    torch.manual_seed(0)
    layers = [nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(dropout)]
    return nn.Sequential(*layers, nn.Linear(8, 3))


def test_replay_gives_the_numbers_of_no_graphs():
    policies = ({}, {"cumulative_iters": 2}, {"precision": "bf16"})
    for policy in policies:
        runs = []
        for graphs in (False, True):
            before = total("graph_replay")
            where = device(graphs=graphs)
            runs.append(train(where, model=normed(), policy=policy))
            replays = total("graph_replay") - before
            assert replays >= 40 if graphs else replays == 0
        close(*runs, 1e-6)
        assert "forward" not in vars(runs[1][0].model)


def test_each_new_shape_is_captured_up_to_the_limit():
    runner, _ = make(device(graphs=True, max_graphs=1), epochs=1)
    with Lines() as log:
        runner.run([loader(samples=22)], [("train", 1)])
    assert "a shape beyond max_graphs" in log.text
    runner.close()
    runner, _ = make(device(graphs=True), epochs=1)
    with Lines() as log:
        runner.run([loader(samples=22)], [("train", 1)])
    assert "without a graph" not in log.text
    runner.close()


def test_a_model_that_cannot_be_captured_is_refused():
    runner, _ = make(device(graphs=True), model=Planted("mask"))
    try:
        runner.run([loader()], [("train", 1)])
    except UnsupportedFeatureError as error:
        assert "Planted cannot be captured in an HPU graph: dynamic shapes" in str(
            error
        )
    else:
        raise AssertionError("no error")
    finally:
        runner.close()


def test_an_average_of_the_weights_has_a_forward_of_its_own():
    import copy

    runner, _ = make(device(graphs=True), model=normed())
    runner.run([loader()], [("train", 1)])
    twin = copy.deepcopy(runner.model)
    with torch.no_grad():
        for parameter in twin.parameters():
            parameter.zero_()
    inputs = torch.ones(2, 4, device="hpu")
    twin.eval()
    assert float(twin(inputs).detach().abs().sum()) == 0
    runner.close()


def test_marks_come_after_backward_and_after_the_update():
    before = total("flush by mark_step")
    train(device(fused=False), epochs=1)
    first = total("flush by mark_step") - before
    assert first >= 2 * 12
    train(device(fused=False), epochs=1, policy={"cumulative_iters": 2})
    second = total("flush by mark_step") - before - first
    assert 12 + 6 <= second <= first


def test_a_models_own_update_is_marked_too():
    class Own(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = net()

        def train_step(self, data, optimizer):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(self.net(data[0]), data[1])
            loss.backward()
            optimizer.step()
            return {"loss": loss.detach(), "log_vars": {}, "num_samples": 4}

    before = total("flush by mark_step")
    mine = train(device(fused=False), model=Own(), epochs=1)
    assert total("flush by mark_step") - before >= 12
    close(mine, train("cpu", model=Own(), epochs=1))


class Mixed(nn.Module):
    """Draws or counts on the host, in one of the ways that a capture freezes."""

    def __init__(self, way):
        super().__init__()
        torch.manual_seed(0)
        self.net = net()
        self.way, self.steps, self.own = way, 0, random.Random(0)
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x):
        share = getattr(self, self.way)(x)
        return self.net(x * share)

    def by_numpy(self, x):
        return float(np.random.beta(0.4, 0.4))  # FROZEN by_numpy

    def by_python(self, x):
        return random.random()  # FROZEN by_python

    def by_own(self, x):
        return self.own.random()  # FROZEN by_own

    def by_torch(self, x):
        return torch.rand(()).to(x.device)  # FROZEN by_torch

    def by_steps(self, x):
        self.steps += 1  # FROZEN by_steps
        return self.steps

    def by_device(self, x):
        return torch.rand((), device=x.device)

    def by_buffer(self, x):
        self.count.add_(1)
        return self.count.clone()


FROZEN = {
    "by_numpy": "draws from numpy.random",
    "by_python": "draws from random",
    "by_own": "draws from Mixed.own",
    "by_torch": "draws from torch's CPU generator",
    "by_steps": "changes Mixed.steps from 0 to 1",
}


def test_what_a_graph_freezes_of_the_host_is_said_with_its_line():
    for way in ("by_device", "by_buffer", *FROZEN):
        with Lines() as log:
            runner, _ = make(device(graphs=True), model=Mixed(way), epochs=1)
            runner.run([loader()], [("train", 1)])
        rows = runner.adapter.frozen()
        runner.close()
        said = [line for line in log.messages if line.startswith("hpu graphs: ")]
        if way not in FROZEN:
            assert (rows, said) == ([], []), way
            continue
        (row,), (line,) = rows, said
        lines, first = inspect.getsourcelines(Mixed)
        (place,) = [i for i, s in enumerate(lines) if s.endswith(f"FROZEN {way}\n")]
        site = f"{__file__}:{first + place}"
        assert (row.what, row.site) == (FROZEN[way], site)
        assert f"the forward pass at {site} {FROZEN[way]}" in line
        assert "register_buffer" in line if way == "by_steps" else "collate_fn" in line
