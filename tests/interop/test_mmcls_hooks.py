"""Hook files written for MMCV's runner, in configs of MMClassification."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.support import zygote

pytestmark = pytest.mark.usefixtures("mmcls")

ROOT = Path(__file__).resolve().parents[2]
HOOK = """
from mmcv.runner import HOOKS, Hook

@HOOKS.register_module()
class Told(Hook):
    def after_train_iter(self, runner):
        print("told", runner.iter)
"""
START = """
import runpy
from tests.registry.scanning import let_torchvision_load

let_torchvision_load()
runpy.run_module("devrun", run_name="__main__", alter_sys=True)
"""
LENET = {
    "type": "ImageClassifier",
    "backbone": {"type": "LeNet5", "num_classes": 10},
    "head": {"type": "ClsHead", "loss": {"type": "CrossEntropyLoss"}},
}
STEPS = [
    {"type": "LoadImageFromFile", "color_type": "grayscale"},
    {"type": "Normalize", "mean": [33.0], "std": [78.0], "to_rgb": False},
    {"type": "ImageToTensor", "keys": ["img"]},
]
TRAINED = [{"type": "ToTensor", "keys": ["gt_label"]}]


def collect(*keys):
    return [{"type": "Collect", "keys": list(keys)}]


def config(**changes):
    images = {"type": "CustomDataset", "data_prefix": "images"}
    train = [*STEPS, *TRAINED, *collect("img", "gt_label")]
    return {
        "default_scope": "mmcls",
        "model": LENET,
        "data": {
            "samples_per_gpu": 2,
            "workers_per_gpu": 0,
            "train": {**images, "pipeline": train},
            "val": {**images, "pipeline": [*STEPS, *collect("img")]},
        },
        "evaluation": {"metric_options": {"topk": 1}},
        "optimizer": {"type": "SGD", "lr": 0.01},
        "runner": {"type": "EpochBasedRunner", "max_epochs": 1},
        **changes,
    }


@pytest.fixture
def train(tmp_path):
    """`train(config, *flags)`: the command, in a process that it may change."""
    image = pytest.importorskip("PIL.Image")
    for name in "ab":
        (tmp_path / "images" / name).mkdir(parents=True)
        for number in range(5):
            picture = image.new("L", (32, 32), 20 * number)
            picture.save(tmp_path / "images" / name / f"{number}.png")
    (tmp_path / "own_hook.py").write_text(HOOK)

    def start(cfg, *flags):
        (tmp_path / "config.json").write_text(json.dumps(cfg))
        paths = [str(tmp_path), str(ROOT), os.environ.get("PYTHONPATH", "")]
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
        words = ["train", "config.json", "--device", "cpu", "--no-progress", *flags]
        words += ["--work-dir", "work"]
        return zygote.run(["-c", START, *words], env=env, cwd=tmp_path, timeout=300)

    return start


OWN = {"custom_imports": {"imports": ["own_hook"]}, "custom_hooks": [{"type": "Told"}]}


def test_with_the_flag_a_config_of_theirs_trains_with_them(train):
    done = train(config(**OWN), "--mmcv")
    assert done.returncode == 0, done.stderr[-2000:]
    told = [line for line in done.stdout.splitlines() if line.startswith("told")]
    assert told == [f"told {number}" for number in range(5)]


@pytest.mark.parametrize("scope", ["mmcls", "devrun"])
def test_without_it_the_error_names_the_flag(train, scope):
    own = {**OWN, "default_scope": scope}
    if scope == "devrun":
        own["model"] = {**LENET, "type": "mmcls.ImageClassifier"}
        own["data"] = {"train": {"type": "SyntheticClassification"}}
    done = train(config(**own))
    assert done.returncode == 2, done.stderr[-2000:]
    last = done.stderr.splitlines()[-1]
    assert "'Told' is not in the hook registry" in last
    assert "give --mmcv" in last and "custom_imports" not in last
