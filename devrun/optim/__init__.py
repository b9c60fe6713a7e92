"""Optimizers: built from a config, with options per parameter, named for storage."""

from devrun.optim.build import (
    TORCH_OPTIMIZERS,
    build_optimizer,
    build_optimizer_constructor,
    register_torch_optimizers,
)
from devrun.optim.constructor import DefaultOptimizerConstructor
from devrun.optim.names import param_names
from devrun.registry import OPTIMIZER_BUILDERS, OPTIMIZERS

__all__ = [
    "OPTIMIZERS",
    "OPTIMIZER_BUILDERS",
    "TORCH_OPTIMIZERS",
    "DefaultOptimizerConstructor",
    "build_optimizer",
    "build_optimizer_constructor",
    "param_names",
    "register_torch_optimizers",
]
