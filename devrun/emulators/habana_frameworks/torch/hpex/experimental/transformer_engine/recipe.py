"""How float8 numbers are scaled; descriptions only."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class Format(enum.Enum):
    """Number formats of forward and backward."""

    E4M3 = "e4m3"
    E5M2 = "e5m2"
    HYBRID = "hybrid"


@dataclass
class DelayedScaling:
    """Scales from the greatest values of the last `amax_history_len` steps."""

    margin: int = 0
    interval: int = 1
    fp8_format: Format = Format.HYBRID
    amax_history_len: int = 1
    amax_compute_algo: str = "max"
    reduce_amax: bool = False
