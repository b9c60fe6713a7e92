"""Dotted paths: what the registry holds, and nothing else."""

import sys

import pytest
import torch

from devrun import trust
from devrun.errors import ConfigError, UnknownNameError
from devrun.hooks.base import Hook
from devrun.registry import (
    DATASETS,
    HOOKS,
    LOSSES,
    LR_SCHEDULERS,
    METRICS,
    MODELS,
    OPTIMIZERS,
    TRANSFORMS,
)

SOURCE = """
from __future__ import annotations
import os
import torch
from torch import nn
from torch.utils.data import Dataset
from devrun.hooks.base import Hook


class NetConfig:
    def __init__(self, width, inner=None):
        self.width, self.inner = width, inner


class Net(nn.Linear):
    class Small(nn.Identity):
        pass

    def __init__(self, config=None, backbone=None):
        super().__init__(2, getattr(config, "width", 3))
        self.config, self.backbone = config, backbone


def make_net(width) -> Net:
    return Net(NetConfig(width))


def make_quoted(width) -> "nn.Module":
    return Net(NetConfig(width))


def unannotated():
    raise AssertionError("called")


def returns_text() -> str:
    raise AssertionError("called")


def text():
    return "text"


instance = Net()


class Data(Dataset):
    def __init__(self, size):
        self.size = size


class MyHook(Hook):
    pass


class Count:
    def update(self, batch): ...
    def compute(self): ...
    def reset(self): ...


class Flip:
    def __call__(self, image):
        return image
"""


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A user's own package `zoo`, importable for one test."""
    folder = tmp_path / "zoo"
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    (folder / "nets.py").write_text(SOURCE)
    (folder / "broken.py").write_text("import no_such_thing\n")
    (folder / "wrong.py").write_text("1 / 0\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield
    for name in [name for name in sys.modules if name.split(".")[0] == "zoo"]:
        del sys.modules[name]


def test_classes_of_torch_are_taken_by_their_path():
    layer = MODELS.build(
        {"type": "torch.nn.Linear", "in_features": 2, "out_features": 3}
    )
    assert isinstance(layer, torch.nn.Linear)
    loss = LOSSES.build({"type": "torch.nn.CrossEntropyLoss", "label_smoothing": 0.1})
    assert loss.label_smoothing == 0.1
    assert OPTIMIZERS.resolve("torch.optim.SGD") is torch.optim.SGD
    name = "torch.optim.lr_scheduler.StepLR"
    assert LR_SCHEDULERS.resolve(name) is torch.optim.lr_scheduler.StepLR


def test_classes_of_a_users_package_are_taken(package):
    assert MODELS.build({"type": "zoo.nets.Net"}).out_features == 3
    assert DATASETS.build({"type": "zoo.nets.Data", "size": 4}).size == 4
    assert isinstance(HOOKS.build({"type": "zoo.nets.MyHook"}), Hook)
    assert METRICS.resolve("zoo.nets.Count").__name__ == "Count"
    assert TRANSFORMS.resolve("zoo.nets.Flip").__name__ == "Flip"
    assert MODELS.resolve("zoo.nets.Net.Small").__name__ == "Small"


@pytest.mark.parametrize("name", ["make_net", "make_quoted"])
def test_an_annotation_opens_nothing(package, name):
    with pytest.raises(ConfigError, match=f"--allow-factory zoo.nets.{name}"):
        MODELS.build({"type": f"zoo.nets.{name}", "width": 5})


@pytest.fixture
def allowed(monkeypatch):
    monkeypatch.setattr(trust, "_allowed", set())
    return trust.allow_factory


def test_a_function_is_taken_once_it_is_allowed(package, allowed):
    cfg = {"type": "zoo.nets.make_net", "width": 5}
    with trust.granted(["zoo.nets.make_net"]):
        assert MODELS.build(cfg).out_features == 5
    with pytest.raises(ConfigError, match="cannot be the type of a model"):
        MODELS.build(cfg)
    allowed("zoo.nets.make_net")
    assert MODELS.build(cfg).out_features == 5
    from zoo.nets import make_quoted

    assert allowed(make_quoted) is make_quoted
    path = {"type": "zoo.nets.make_quoted", "width": 4}
    assert MODELS.build(path).out_features == 4


def test_what_an_allowed_function_makes_is_still_checked(package, allowed):
    allowed("zoo.nets.text")
    with pytest.raises(TypeError, match="made no model: str 'text'"):
        MODELS.build({"type": "zoo.nets.text"})


@pytest.mark.parametrize(
    "path",
    [
        "zoo.nets.unannotated",
        "zoo.nets.returns_text",
        "zoo.nets.instance",
        "zoo.nets.os",
        "zoo.nets.os.system",
        "zoo.nets.NetConfig",
        "zoo.nets.Data",
        "torch.load",
        "torch.nn.functional.relu",
        "torch.optim.SGD",
        "torch.hub.load",
        "torch.os.system",
    ],
)
def test_anything_else_is_refused_and_not_called(package, path):
    with pytest.raises(ConfigError, match="cannot be the type of a model"):
        MODELS.build({"type": path})


def test_a_wrong_last_part_shows_the_nearest(package):
    with pytest.raises(UnknownNameError, match="did you mean 'Net'"):
        MODELS.build({"type": "zoo.nets.Nett"})
    with pytest.raises(UnknownNameError, match=r"zoo has no 'netz'"):
        MODELS.build({"type": "zoo.netz.Net"})


@pytest.mark.parametrize(
    ("module", "cause"),
    [("broken", "No module named 'no_such_thing'"), ("wrong", "ZeroDivisionError")],
)
def test_a_module_that_fails_to_import_is_one_line(package, module, cause):
    with pytest.raises(ConfigError, match=f"importing it failed: .*{cause}") as caught:
        MODELS.build({"type": f"zoo.{module}.Net"})
    assert "\n" not in str(caught.value)
    assert caught.value.__cause__ is not None


@pytest.mark.parametrize(
    "path", ["torch..nn", ".torch", "torch.nn.", "a b.c", "../x.y"]
)
def test_what_is_no_path_is_refused(path):
    with pytest.raises(ConfigError, match="is not a dotted path"):
        MODELS.build({"type": path})


def test_a_config_object_of_the_same_package_is_built(package):
    model = MODELS.build(
        {
            "type": "zoo.nets.Net",
            "config": {
                "type": "zoo.nets.NetConfig",
                "width": 7,
                "inner": {"type": "zoo.nets.NetConfig", "width": 1},
            },
        }
    )
    assert model.out_features == 7
    assert model.config.inner.width == 1


@pytest.mark.parametrize(
    "nested",
    [
        {"type": "torch.nn.Identity"},
        {"type": "zoo.nets.Data", "size": 3},
        {"type": "zoo.nets.unannotated"},
        {"type": "ResNet", "depth": 18},
        {"type": 3},
    ],
)
def test_other_nested_dicts_are_left_to_the_constructor(package, nested):
    model = MODELS.build({"type": "zoo.nets.Net", "backbone": nested})
    assert model.backbone == nested
