"""Scheduler state as JSON values, and back into a freshly built scheduler.

A scheduler's `state_dict` is its whole `__dict__`. What cannot be written down, such
as functions or torch's Counter of milestones, comes from the configuration and is in
the fresh scheduler already.
"""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor

_SKIP = object()


def encode(value: dict[str, Any]) -> dict[str, Any]:
    """The part of `value` that can be written as strict JSON."""
    encoded: dict[str, Any] = _encode(value)
    return encoded


def overlay(fresh: Any, saved: Any) -> Any:
    """`fresh` with what `encode` kept put back; neither is changed."""
    if isinstance(saved, dict):
        if set(saved) == {"float"}:
            return float(saved["float"])
        base = dict(fresh) if isinstance(fresh, dict) else {}
        return {**base, **{k: overlay(base.get(k), v) for k, v in saved.items()}}
    if isinstance(saved, list):
        known = list(fresh) if isinstance(fresh, (list, tuple)) else []
        known += [None] * (len(saved) - len(known))
        return [overlay(f, s) for f, s in zip(known, saved, strict=False)]
    return saved


def _encode(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return {"float": str(value)}
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, Tensor):
        return _encode(value.item()) if value.numel() == 1 else _SKIP
    if isinstance(value, (list, tuple)):
        entries = [_encode(entry) for entry in value]
        return _SKIP if any(entry is _SKIP for entry in entries) else entries
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        pairs = ((key, _encode(entry)) for key, entry in value.items())
        return {key: entry for key, entry in pairs if entry is not _SKIP}
    return _SKIP
