"""Optimizers whose update is one kernel on a Gaudi."""

from __future__ import annotations

from habana_frameworks.torch.hpex.optimizers.adagrad import FusedAdagrad
from habana_frameworks.torch.hpex.optimizers.adamw import FusedAdamW
from habana_frameworks.torch.hpex.optimizers.lamb import FusedLamb
from habana_frameworks.torch.hpex.optimizers.lars import (
    FusedLars,
    FusedResourceApplyMomentum,
)
from habana_frameworks.torch.hpex.optimizers.sgd import FusedSGD

__all__ = [
    "FusedAdagrad",
    "FusedAdamW",
    "FusedLamb",
    "FusedLars",
    "FusedResourceApplyMomentum",
    "FusedSGD",
]
