"""Float8 training; importable, because models import it, and refused when used."""

from __future__ import annotations

from typing import Any

import torch

from habana_frameworks.torch.hpex.experimental.transformer_engine import fp8
from habana_frameworks.torch.hpex.experimental.transformer_engine.fp8 import (
    is_fp8_available,
)

__all__ = ["LayerNorm", "Linear", "fp8", "fp8_autocast", "is_fp8_available"]


def fp8_autocast(*args: Any, enabled: bool = False, **kwargs: Any) -> Any:
    """A context without effect; NotImplementedError if it is to be enabled."""
    if enabled:
        raise NotImplementedError(is_fp8_available()[1])
    return torch.autocast("hpu", enabled=False)


class Linear(torch.nn.Linear):
    """torch.nn.Linear, which this is outside `fp8_autocast`."""

    def __init__(
        self, in_features: int, out_features: int, bias: bool = True, **options: Any
    ) -> None:
        known = {k: options[k] for k in ("device", "dtype") if k in options}
        super().__init__(in_features, out_features, bias, **known)


LayerNorm = torch.nn.LayerNorm
