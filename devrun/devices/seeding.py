"""Seeds of the global random streams, and the switch for repeatable algorithms."""

from __future__ import annotations

import os
import random
from typing import Any

import numpy as np
import torch


def seed_streams(seed: int, rank: int) -> None:
    """Seed python, numpy and torch (host and devices).

    torch's streams differ by rank, so that ranks do not drop the same units; python's
    and numpy's are the same everywhere, so that a choice such as an image size agrees.
    """
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed + rank)


class Determinism:
    """torch's switch for algorithms that repeat bit for bit; `undo` puts it back."""

    def __init__(self) -> None:
        self._before: tuple[bool, bool] | None = None

    def apply(self) -> None:
        if self._before is None:
            self._before = (
                torch.are_deterministic_algorithms_enabled(),
                torch.is_deterministic_algorithms_warn_only_enabled(),
            )
            # read by cuBLAS when it starts; torch refuses to be deterministic without
            os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
            torch.use_deterministic_algorithms(True)

    def undo(self) -> None:
        if self._before is not None:
            enabled, warn_only = self._before
            torch.use_deterministic_algorithms(enabled, warn_only=warn_only)
            self._before = None


def rng_of(adapter: Any) -> Any:
    """`adapter`, where `torch.utils.checkpoint` passes over its random streams.

    That looks at those of a device whose module in torch says that it is initialized.
    """
    kind = getattr(getattr(adapter, "device", None), "type", "cpu")
    known = kind == "cpu" or hasattr(getattr(torch, kind, None), "_initialized")
    return None if known else adapter
