"""Comparison of results, for tests of models."""

from __future__ import annotations

from typing import Any

import torch


def allclose(ref: Any, other: Any) -> bool:
    """Whether two tensors, or nested lists and tuples of them, are close.

    Raises:
        TypeError: `ref` is none of these.
    """
    if isinstance(ref, torch.Tensor):
        return bool(torch.allclose(other, ref))
    if not isinstance(ref, (list, tuple)):
        raise TypeError(f"cannot compare {type(ref).__name__}")
    kind = tuple if isinstance(ref, tuple) else list
    if not isinstance(other, kind) or len(other) != len(ref):
        return False
    return all(allclose(r, o) for r, o in zip(ref, other))
