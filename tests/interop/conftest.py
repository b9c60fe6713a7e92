"""What the tests of other libraries share."""

from __future__ import annotations

import importlib.util
import os
import sys
from importlib import metadata
from pathlib import Path

import pytest

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
    if not _version(distribution).startswith(f"{series}."):
        pytest.skip(
            f"needs {distribution} {series}.x, {_version(distribution)} is here"
        )


@pytest.fixture(scope="session")
def mmcls():
    """MMClassification 0.25 on MMCV 1.7 is installed."""
    _needs("mmcv", "mmcv", "1.7")
    _needs("mmcls", "mmcls", "0.25")
    vision("torchvision")


@pytest.fixture(scope="session")
def mmpretrain():
    """MMPretrain 1.2 on MMEngine 0.10 is installed."""
    _needs("mmengine", "mmengine", "0.10")
    _needs("mmpretrain", "mmpretrain", "1.2")
    vision("torchvision")


@pytest.fixture(scope="session")
def mmseg2():
    """MMSegmentation 1.2 on MMEngine 0.10 is installed."""
    _needs("mmengine", "mmengine", "0.10")
    _needs("mmseg", "mmsegmentation", "1.2")
    vision("torchvision")


def _family(package, distribution, series):
    _needs("mmcv", "mmcv", "1.7")
    _needs(package, distribution, series)
    vision("torchvision")


@pytest.fixture(scope="session")
def mmseg1():
    """MMSegmentation 0.30 on MMCV 1.7 is installed."""
    _family("mmseg", "mmsegmentation", "0.30")


@pytest.fixture(scope="session")
def mmdet2():
    """MMDetection 2.28 on MMCV 1.7 is installed."""
    _family("mmdet", "mmdet", "2.28")


@pytest.fixture(scope="session")
def mmpose0():
    """MMPose 0.29 on MMCV 1.7 is installed."""
    _family("mmpose", "mmpose", "0.29")


@pytest.fixture
def mmpose_without_checks(mmpose0, monkeypatch):
    """MMPose taking this MMCV; xtcocotools built for another numpy is its original."""
    import mmcv

    monkeypatch.setattr(mmcv, "__version__", "1.7.0")
    try:
        import xtcocotools.mask  # noqa: F401
    except ValueError:
        from pycocotools import coco, cocoeval

        monkeypatch.setitem(sys.modules, "xtcocotools.coco", coco)
        monkeypatch.setitem(sys.modules, "xtcocotools.cocoeval", cocoeval)
