"""Host state that a capture would freeze: found, with the line, and nothing else."""

import inspect
import itertools
import random
from collections import deque

import numpy as np
import pytest
import torch
from torch import nn

from devrun.devices.capture import CaptureWatch


class Part(nn.Module):
    """A layer that does `act` in its forward pass."""

    def __init__(self, act, **own):
        super().__init__()
        vars(self).update(act=act, **own)

    def forward(self, x):
        self.act(self)
        return x


def watch(act, **own):
    model = nn.Sequential(Part(act, **own))
    with CaptureWatch(model) as seen:
        model(torch.zeros(1))
    return seen.findings


SITE = f"{__file__}:{Part.forward.__code__.co_firstlineno}"


def draw_numpy(self):
    np.random.beta(0.2, 0.2)


def draw_python(self):
    random.uniform(0, 1)


@pytest.mark.parametrize(
    ("act", "name"), [(draw_numpy, "numpy.random"), (draw_python, "random")]
)
def test_a_draw_of_random_numbers_is_found(act, name):
    with CaptureWatch(model := Part(act)) as seen:
        model(torch.zeros(1))
    (found,) = seen.findings
    site = f"{__file__}:{act.__code__.co_firstlineno + 1}"
    assert (found.what, found.site, found.random) == (f"draws from {name}", site, True)
    told = found.message("ipu")
    assert told.startswith(f"ipu: the forward pass at {site} draws from {name} in")
    assert "collate_fn" in told
    assert "\n" not in told


def count(self):
    self.number += 1


def grow(self):
    self.kept.append(1)


def advance(self):
    next(self.numbers)


def set_inside(self):
    self.state["warm"] = True


@pytest.mark.parametrize(
    ("act", "own", "what"),
    [
        (count, {"number": 0}, "changes Sequential.0.number from 0 to 1"),
        (grow, {"kept": []}, "changes Sequential.0.kept"),
        (grow, {"kept": deque()}, "changes Sequential.0.kept"),
        (advance, {"numbers": itertools.count()}, "changes Sequential.0.numbers"),
        (set_inside, {"state": {"warm": False}}, "changes Sequential.0.state"),
    ],
)
def test_a_changed_attribute_is_found(act, own, what):
    (found,) = watch(act, **own)
    assert (found.what, found.site) == (what, SITE)  # what `act` does is not in Part
    assert not found.random
    assert "register_buffer" in found.message("ipu")


def test_a_generator_of_the_programs_own_is_one_to_draw_from():
    draws = {
        np.random.default_rng(3): lambda self: self.rng.normal(),
        np.random.RandomState(3): lambda self: self.rng.normal(),
        random.Random(3): lambda self: self.rng.random(),
        torch.Generator(): lambda self: torch.rand(2, generator=self.rng),
    }
    for generator, draw in draws.items():
        (found,) = watch(draw, rng=generator)
        assert found.what == "draws from Sequential.0.rng"
        assert found.random


def test_an_attribute_of_another_object_is_found():
    class Mixer:
        calls = 0

        def __call__(self):
            self.calls += 1

    mixer = Mixer()
    mixer.calls = 0
    (found,) = watch(lambda self: self.mixer(), mixer=mixer)
    assert found.what == "changes Sequential.0.mixer.calls from 0 to 1"


def keep_tensors(self):
    self.seen = torch.ones(2)
    self.list.append(torch.ones(2))
    self.cache[4] = torch.ones(2)


def fill(self):
    self.size, self.mask = 7, torch.ones(7)


def put_back(self):
    state = np.random.get_state()
    np.random.rand()
    np.random.set_state(state)
    self.number += 1
    self.number -= 1


@pytest.mark.parametrize(
    ("act", "own"),
    [
        (keep_tensors, {"seen": None, "list": [], "cache": {}}),
        (fill, {"size": None}),
        (put_back, {"number": 0}),
        (lambda self: torch.ones(3), {"number": 0, "nan": float("nan")}),
        (lambda self: None, {"many": list(range(20_000)), "shape": (1, 2)}),
    ],
)
def test_tensors_caches_and_what_is_put_back_are_no_findings(act, own):
    assert watch(act, **own) == []


class Carries(nn.Module):
    """Reads tensors of the call before, keeps some for others, and fills a cache."""

    def __init__(self):
        super().__init__()
        self.mean, self.state, self.mask = torch.tensor(0.0), None, None
        self.queue, self.kept = deque(maxlen=2), []

    def forward(self, x):
        self.kept = []
        self.kept.append(x)
        if self.mask is None or self.mask.shape != x.shape:
            self.mask = torch.ones_like(x)
        self.mean = 0.9 * self.mean + 0.1 * x.mean()  # mean
        self.queue.append(x)  # queue
        state = x if self.state is None else self.state
        self.state = state + 1, x  # state
        return self.mask * x


def test_tensors_that_the_next_call_would_read_are_found_and_no_others():
    with CaptureWatch(model := Carries()) as seen:
        model(torch.zeros(1))
    lines = inspect.getsourcelines(Carries)[0]
    first = inspect.getsourcelines(Carries)[1]
    for found in seen.findings:
        name = found.what.rpartition(".")[2]
        line = int(found.site.rpartition(":")[2])
        assert lines[line - first].endswith(f"# {name}\n")
    names = {found.what for found in seen.findings}
    assert names == {f"changes Carries.{name}" for name in ("mean", "queue", "state")}


def test_draws_of_torchs_host_generator_are_found():
    model = Part(lambda self: torch.rand(1))
    with CaptureWatch(model) as seen:
        model(torch.zeros(1))
    assert [f.what for f in seen.findings] == ["draws from torch's CPU generator"]
