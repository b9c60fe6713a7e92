"""Differences in units in the last place."""

from __future__ import annotations

import torch
from torch import Tensor

_INTEGERS = {8: torch.int64, 4: torch.int32, 2: torch.int16}


def ulps(a: Tensor, b: Tensor, dtype: torch.dtype) -> float:
    """The median over the values of how many numbers of `dtype` lie between a and b.

    Both are rounded to `dtype` first. As integers, the bits of floating-point numbers
    count them in order (Goldberg 1991; Dawson, "Comparing Floating Point Numbers"),
    negative ones downwards from zero, so that +0 and -0 are one.

    Args:
        a, b: of the same shape; values that are not finite are left out.
        dtype: float64, float32, bfloat16 or float16.

    Returns:
        NaN where no value is finite in both.
    """
    finite = torch.isfinite(a) & torch.isfinite(b)
    if not finite.any():
        return float("nan")
    gap = (_counted(a[finite], dtype) - _counted(b[finite], dtype)).abs()
    return float(gap.median())


def _counted(values: Tensor, dtype: torch.dtype) -> Tensor:
    kind = _INTEGERS[torch.finfo(dtype).bits // 8]
    bits = values.to(dtype).view(kind)
    least = torch.iinfo(kind).min
    return torch.where(bits < 0, least - bits, bits).to(torch.int64)
