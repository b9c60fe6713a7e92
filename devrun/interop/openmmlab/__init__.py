"""Packages of OpenMMLab on MMCV 1.x: their registries as scopes, configs and models."""

from devrun.interop.openmmlab.models import init_weights, move_augments
from devrun.interop.openmmlab.scope import MmcvScope, attach

__all__ = ["MmcvScope", "attach", "init_weights", "move_augments"]
