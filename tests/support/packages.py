"""Packages that are not always here, or not whole."""

import importlib.util

import pytest
import torch

_defined = []


def vision(name):
    """The module `name`, which may import torchvision; the test is skipped without it.

    A torchvision built for another torch imports only once these two of its operators,
    which no test calls, are there.
    """
    if importlib.util.find_spec("torchvision") and not _defined:
        _defined.append(torch.library.Library("torchvision", "FRAGMENT"))
        for operator in ("nms", "qnms"):
            if not hasattr(torch.ops.torchvision, operator):
                schema = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
                _defined[0].define(operator + schema)
    return pytest.importorskip(name)
