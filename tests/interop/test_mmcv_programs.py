"""MMClassification 0.25's own training program, unmodified, on made-up files."""

import importlib.util
import json
import os
import pickle
from importlib import metadata
from pathlib import Path

import numpy as np
import pytest

from tests.support import zygote


def _mmcls():
    """The folder that MMCls 0.25 has its programs and configs in, or None."""
    found = importlib.util.find_spec("mmcls")
    if found is None or not metadata.version("mmcls").startswith("0.25."):
        return None
    return Path(found.origin).parent / ".mim"


THEIRS = _mmcls()
START = """
import runpy
from tests.support.packages import let_torchvision_load

let_torchvision_load()
runpy.run_module("devrun.interop.mmcv", run_name="__main__", alter_sys=True)
"""
pytestmark = pytest.mark.skipif(THEIRS is None, reason="mmcls 0.25 is not installed")
NAMES = [*(f"data_batch_{n}" for n in range(1, 6)), "test_batch"]
CHECKSUMS = """
import hashlib, os
from mmcls.datasets import CIFAR10

def md5(name):
    with open(os.path.join("data/cifar10", CIFAR10.base_folder, name), "rb") as file:
        return hashlib.md5(file.read()).hexdigest()

CIFAR10.train_list = [[name, md5(name)] for name, _ in CIFAR10.train_list]
CIFAR10.test_list = [[name, md5(name)] for name, _ in CIFAR10.test_list]
CIFAR10.meta = dict(CIFAR10.meta, md5=md5("batches.meta"))
"""
CONFIG = """
_base_ = {base!r}
custom_imports = dict(imports=["checksums"])  # of the files that were made up
model = dict(
    backbone=dict(stem_channels=8, base_channels=8), head=dict(in_channels=64))
data = dict(workers_per_gpu=0, persistent_workers=False)
evaluation = dict(save_best="auto")
runner = dict(max_epochs=2)
log_config = dict(interval=2)
"""


@pytest.fixture
def made_up(tmp_path):
    """Six files of 32 images each in CIFAR-10's layout; brightness tells the class."""
    folder = tmp_path / "data" / "cifar10" / "cifar-10-batches-py"
    folder.mkdir(parents=True)
    random = np.random.RandomState(0)
    for name in NAMES:
        labels = random.randint(0, 10, 32)
        noise = random.randint(0, 60, (32, 3 * 32 * 32))
        images = (noise + labels[:, None] * 19).astype("uint8")
        content = {"data": images, "labels": labels.tolist()}
        (folder / name).write_bytes(pickle.dumps(content))
    words = {"label_names": [f"class {n}" for n in range(10)]}
    (folder / "batches.meta").write_bytes(pickle.dumps(words))
    (tmp_path / "checksums.py").write_text(CHECKSUMS)
    base = THEIRS / "configs" / "resnet" / "resnet18_8xb16_cifar10.py"
    (tmp_path / "config.py").write_text(CONFIG.format(base=str(base)))
    return tmp_path


def test_their_train_program_trains_evaluates_and_saves(made_up):
    program = THEIRS / "tools" / "train.py"
    words = ["config.py", "--work-dir", "work", "--seed", "1", "--device", "cpu"]
    paths = [str(made_up), os.environ.get("PYTHONPATH", "")]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    start = ["-c", START, program, *words]
    done = zygote.run(start, env=env, cwd=made_up, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    (log,) = (made_up / "work").glob("*.log.json")
    records = [json.loads(line) for line in log.read_text().splitlines()]
    losses = [r["loss"] for r in records if r.get("mode") == "train"]
    (first, last) = [r for r in records if r.get("mode") == "val"]
    assert len(losses) == 10 and losses[-1] < losses[0]
    assert last["accuracy_top-1"] > 15 and last["step"] == 20  # chance is 10
    best = [path.name for path in (made_up / "work" / "checkpoints").glob("best_acc*")]
    assert len(best) == 1 and best[0].startswith("best_accuracy_top-1_epoch_")
    assert "BaseModule" not in done.stderr and first["accuracy_top-5"] > 40
