"""Packages of OpenMMLab, found without importing them."""

from __future__ import annotations

import importlib.util
from importlib import metadata

import pytest
import torch

_LIBRARY = []


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
    _define_operators()


@pytest.fixture(scope="session")
def mmpretrain():
    """MMPretrain 1.2 on MMEngine 0.10 is installed."""
    _needs("mmengine", "mmengine", "0.10")
    _needs("mmpretrain", "mmpretrain", "1.2")
    _define_operators()


@pytest.fixture(scope="session")
def mmseg2():
    """MMSegmentation 1.2 on MMEngine 0.10 is installed."""
    _needs("mmengine", "mmengine", "0.10")
    _needs("mmseg", "mmsegmentation", "1.2")
    _define_operators()


def _define_operators():
    if not _LIBRARY and not hasattr(torch.ops.torchvision, "nms"):
        # torchvision registers functions for operators that a CPU build may lack
        library = torch.library.Library("torchvision", "DEF")
        for name in ("nms", "qnms"):
            library.define(f"{name}(Tensor dets, Tensor scores, float iou) -> Tensor")
        _LIBRARY.append(library)
