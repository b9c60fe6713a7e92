"""What scripts around an MMCV runner do: replace the model, meta, seeds, weights."""

import random

import numpy as np
import pytest
import torch
from torch import nn

from devrun.checkpoint import load_checkpoint, save_checkpoint
from devrun.config import ConfigDict
from devrun.errors import ConfigError
from devrun.runners import EpochBasedRunner, set_random_seed
from tests.mmcv_compat.mmcv_style import Classifier, loader, runner_of


def test_a_model_put_in_place_before_the_run_is_the_one_that_is_trained():
    runner = EpochBasedRunner(nn.Linear(1, 1), max_epochs=1, device="cpu")
    model = Classifier()
    before = model.head.weight.detach().clone()
    runner.model = model
    runner.optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    runner.run([loader()], [("train", 1)])
    assert runner.model is model and runner.model_name == "Classifier"
    assert not torch.equal(model.head.weight, before)


def test_a_model_on_the_device_is_not_replaced():
    runner = runner_of(max_epochs=1)
    runner.run([loader()], [("train", 1)])
    with pytest.raises(ConfigError, match="before run"):
        runner.model = Classifier()


def test_meta_may_be_replaced_and_hold_configs(tmp_path):
    runner = runner_of(max_epochs=1, work_dir=tmp_path)
    runner.meta = {"cfg": ConfigDict(a=1, steps=[1, 2]), "gpu_ids": range(2)}
    runner.register_training_hooks(None, {"grad_clip": None}, {"interval": 1})
    runner.run([loader()], [("train", 1)])
    again = runner_of()
    again.resume(runner.meta["hook_msgs"]["last_ckpt"])
    assert again.meta["cfg"] == {"a": 1, "steps": [1, 2]}
    assert again.meta["gpu_ids"] == [0, 1]


def test_load_checkpoint_returns_what_was_in_the_file(tmp_path):
    model = Classifier()
    torch.save(model.state_dict(), tmp_path / "bare.pth")
    save_checkpoint(model, tmp_path / "full.pth", meta={"CLASSES": ("cat", "dog")})
    bare = load_checkpoint(Classifier(), tmp_path / "bare.pth")
    assert torch.equal(bare["head.weight"], model.head.weight)
    outer = nn.ModuleDict({"net": Classifier()})
    full = load_checkpoint(
        outer, tmp_path / "full.pth", revise_keys=[(r"^", "net.")], strict=True
    )
    assert tuple(full["meta"]["CLASSES"]) == ("cat", "dog")
    assert torch.equal(full["state_dict"]["head.weight"], outer["net"].head.weight)


def test_set_random_seed_repeats_every_stream():
    def draw():
        return random.random(), float(np.random.rand()), float(torch.rand(()))

    set_random_seed(5)
    first = draw()
    set_random_seed(5, use_rank_shift=True)  # rank 0
    assert draw() == first
    set_random_seed(6)
    assert draw() != first
