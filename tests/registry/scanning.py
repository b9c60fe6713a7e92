"""Torchvision beside a torch that it was not built for."""

from __future__ import annotations

import importlib.util
from importlib import import_module

KEPT = []
"""What would take its names along when it is freed."""


def let_torchvision_load():
    """Where it is, but not its operators, as beside a torch it was not built for."""
    import torch

    if importlib.util.find_spec("torchvision") is None:
        return
    try:
        import_module("torchvision")
    except RuntimeError:
        library = torch.library.Library("torchvision", "DEF")
        for name in ("nms", "qnms"):
            library.define(f"{name}(Tensor a, Tensor b, float c) -> Tensor")
        KEPT.append(library)
