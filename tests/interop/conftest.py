"""What the tests of other libraries share."""

import importlib.util
import json
import logging
import os
import pickle
import sys
from importlib import metadata
from pathlib import Path

import pytest

from devrun.cli.main import main
from devrun.scopes import attach
from tests.support import openmmlab_family as family
from tests.support import zygote
from tests.support.packages import vision

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def on_gaudi():
    """Trains on an emulated Gaudi, in a process of its own: it changes torch."""

    def run(*words):
        env = {k: v for k, v in os.environ.items() if not k.startswith("PT_")}
        env["PYTHONPATH"] = os.pathsep.join([str(ROOT), *filter(None, sys.path)])
        flags = ["--device", "hpu", "--emulate", "--no-progress"]
        program = ROOT / "tests" / "interop" / "serve.py"
        arguments = [program, "train", *map(str, words), *flags]
        done = zygote.run(arguments, env, Path.cwd(), 240)
        assert done.returncode == 0, done.stderr[-2000:]

    return run


def _version(distribution):
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return ""


def _needs(package, distribution, series):
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"needs {distribution} {series}.x, which is not installed")
    here = _version(distribution) or f"another {package}"
    if not here.startswith(f"{series}."):
        pytest.skip(f"needs {distribution} {series}.x, {here} is here")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with CIFAR-10's files, made up and small, which MMPretrain takes."""
    np = pytest.importorskip("numpy")
    monkeypatch.chdir(tmp_path)
    attach("mmpretrain")  # whose own check of the files this replaces
    monkeypatch.setattr("mmpretrain.datasets.cifar.check_md5", lambda path, md5: True)
    place = tmp_path / "data" / "cifar-10-batches-py"
    place.mkdir(parents=True)
    draw = np.random.default_rng(0)
    for name in [*(f"data_batch_{n}" for n in range(1, 6)), "test_batch"]:
        pixels = draw.integers(0, 256, (8, 3072), dtype=np.uint8)
        labels = draw.integers(0, 10, 8).tolist()
        (place / name).write_bytes(pickle.dumps({"data": pixels, "labels": labels}))
    names = {"label_names": [f"class {n}" for n in range(10)]}
    (place / "batches.meta").write_bytes(pickle.dumps(names))
    return tmp_path


@pytest.fixture(scope="session")
def mmcls():
    _needs("mmcv", "mmcv", "1.7")
    _needs("mmcls", "mmcls", "0.25")
    vision("torchvision")


@pytest.fixture(scope="session")
def mmpretrain():
    _needs("mmengine", "mmengine", "0.10")
    _needs("mmpretrain", "mmpretrain", "1.2")
    vision("torchvision")


@pytest.fixture(scope="session")
def mmseg2():
    _needs("mmengine", "mmengine", "0.10")
    _needs("mmseg", "mmsegmentation", "1.2")
    vision("torchvision")


@pytest.fixture(scope="session")
def mmseg1():
    _needs("mmcv", "mmcv", "1.7")
    _needs("mmseg", "mmsegmentation", "0.30")
    vision("torchvision")


@pytest.fixture(scope="module")
def segmentation(mmseg1, tmp_path_factory):
    """A folder with `data` in the layouts of ADE20K and CHASE_DB1."""
    folder = tmp_path_factory.mktemp("mmseg")
    family.make_segmentation(folder)
    return folder


@pytest.fixture
def train(tmp_path, capfd, monkeypatch):
    """`train(config, device, *options)` -> (status, stderr, records of the log)."""
    # their loggers keep the stream of the test that came first
    monkeypatch.setattr(logging, "raiseExceptions", False)

    def start(config, device="cpu", *options, flags=(), work="work"):
        place = tmp_path / work
        words = ["train", config, "--device", device, "--work-dir", str(place)]
        words += ["--seed", "1", "--no-progress", *flags]
        words += ["--emulate"] if device != "cpu" else []
        status = main([*words, "--cfg-options", *family.SHORT, *options])
        text = capfd.readouterr().err
        logs = sorted(place.glob("*.log.json"))
        lines = logs[-1].read_text().splitlines() if logs else []
        return status, text, [json.loads(line) for line in lines]

    return start
