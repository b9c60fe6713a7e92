"""Model FLOPs utilization of a run: what it computed, against what its device reaches.

The ratio is that of PaLM (Chowdhery et al. 2022, appendix B), with the FLOPs that
torch counts for the first update and, in place of a data sheet's peak, the best matrix
product that `devrun devices --bench` measured.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from devrun.rehearsal.peaks import load


@dataclass(frozen=True)
class Utilization:
    """`gflops`: reached, GFLOP/s; `peak`: measured in `dtype`; `share`: their ratio."""

    gflops: float
    peak: float
    dtype: str
    share: float

    def words(self) -> str:
        return (
            f"{_short(self.gflops)} of the model, {self.share:.1%} of the "
            f"{_short(self.peak)} of {self.dtype} products that were measured here"
        )


def utilization(
    session: Any, flops: int | None, seconds: float, updates: int
) -> Utilization | None:
    """That of `updates` of `flops`, which took `seconds`, waiting for data included.

    None where the FLOPs were not counted, or this device not measured.
    """
    if flops is None or seconds <= 0 or updates < 1:
        return None
    peaks = load(session.adapter)
    if peaks is None:
        return None
    dtype = session.adapter.precision or session.policy.precision
    quick = torch.get_float32_matmul_precision() != "highest"
    if dtype == "fp32" and quick and peaks.peak("tf32"):
        dtype = "tf32"
    peak = peaks.peak(dtype)
    if peak is None:
        return None
    gflops = flops * updates / seconds / 1e9
    return Utilization(gflops, peak, dtype, gflops / peak)


def _short(gflops: float) -> str:
    return f"{gflops / 1e3:.3g} TFLOP/s" if gflops >= 1e3 else f"{gflops:.3g} GFLOP/s"
