"""Where the time of a run went, by the facts that it recorded."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

REST = "the rest"
ADVICE = {
    "data": "the device waits for samples: more workers_per_gpu, lighter transforms",
    "copy": "to the device: pin_memory, larger batches, or samples of fewer bytes",
    "compute": "the model computes, which is what the time should go to",
    "hooks": "log and compute less often (log_config.interval, custom_hooks)",
    "evaluation": "evaluate less often (evaluation.interval) or on fewer samples",
    "saving": "save less often (checkpoint_config.interval), or with async: true",
    REST: "the start and the end, which a longer run has only once",
}


def shares_of(facts: Mapping[str, Any]) -> dict[str, float]:
    """Part of the run -> seconds, together its duration; empty where it has no times.

    Args:
        facts: `run.json` of a run that ended, or what will be.
    """
    seconds = facts.get("seconds")
    whole = finite(facts.get("duration_seconds"))
    if not isinstance(seconds, Mapping) or whole is None:
        return {}
    numbers = {str(key): finite(value) for key, value in seconds.items()}
    shares = {key: value for key, value in numbers.items() if value and value > 0}
    if shares and whole > sum(shares.values()):
        shares[REST] = whole - sum(shares.values())
    return shares


def bound_of(shares: Mapping[str, float]) -> str | None:
    """What most of the time went to, in words; None without times."""
    whole = sum(shares.values())
    if not whole:
        return None
    part = max(shares, key=lambda name: shares[name])
    return f"{part}: {shares[part] / whole:.0%} of the time; {ADVICE.get(part, '')}"


def finite(value: Any) -> float | None:
    """A number of a file as one to compute with; None where it is none."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return float(value) if math.isfinite(value) else None
