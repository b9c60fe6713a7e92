"""`FullPrecisionHook`: checkpoints of a half-precision run that any device can load."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from devrun.hooks.base import Hook, Priority

if TYPE_CHECKING:
    from devrun.runners.base import BaseRunner

__all__ = ["FullPrecisionHook"]


class FullPrecisionHook(Hook):
    """Writes half weights as float32, which holds the same values."""

    priority = Priority.LOWEST

    def before_save_checkpoint(
        self, runner: BaseRunner, checkpoint: dict[str, Any]
    ) -> None:
        checkpoint["model"] = {
            name: value.float() if _is_half(value) else value
            for name, value in checkpoint["model"].items()
        }


def _is_half(value: Any) -> bool:
    return isinstance(value, Tensor) and value.dtype == torch.float16
