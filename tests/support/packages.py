"""Packages that are not always here, or not whole."""

import importlib
import importlib.util

import pytest
import torch

KEPT = []
"""What would take its names along when it is freed."""


def vision(name):
    """The module `name`, which may import torchvision; without it the test skips."""
    let_torchvision_load()
    return pytest.importorskip(name)


def let_torchvision_load():
    """Where it is, but not its operators, as beside a torch it was not built for.

    It imports once these two, which no test calls, are there.
    """
    if KEPT or importlib.util.find_spec("torchvision") is None:
        return
    try:
        importlib.import_module("torchvision")
    except RuntimeError:
        KEPT.append(torch.library.Library("torchvision", "FRAGMENT"))
        for operator in ("nms", "qnms"):
            schema = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
            KEPT[0].define(operator + schema)
