"""Where the time of a run went, by the facts that it recorded."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["bound_of", "shares_of"]

REST = "the rest"
ADVICE = {
    "data": "the device waits for samples: more workers_per_gpu, lighter transforms",
    "step": "the model computes, which is what the time should go to",
    "evaluation": "evaluate less often (evaluation.interval) or on fewer samples",
    "saving": "save less often (checkpoint_config.interval), or with async: true",
}


def shares_of(facts: Mapping[str, Any]) -> dict[str, float]:
    """Part of the run -> seconds, together its duration; empty where it has no times.

    Args:
        facts: `run.json` of a run that ended, or what will be.
    """
    seconds = facts.get("seconds")
    whole = facts.get("duration_seconds")
    if not isinstance(seconds, Mapping) or not isinstance(whole, (int, float)):
        return {}
    shares = {str(k): float(v) for k, v in seconds.items() if _positive(v)}
    if shares and whole > sum(shares.values()):
        shares[REST] = whole - sum(shares.values())
    return shares


def bound_of(shares: Mapping[str, float]) -> str | None:
    """What most of the time went to, in words; None without times.

    The start and the end of a run are no part to be named: a longer one spreads them.
    """
    named = {part: seconds for part, seconds in shares.items() if part in ADVICE}
    if not named:
        return None
    part = max(named, key=lambda name: named[name])
    share = named[part] / sum(shares.values())
    return f"{part}: {share:.0%} of the time; {ADVICE[part]}"


def _positive(value: Any) -> bool:
    return isinstance(value, (int, float)) and 0 < value < float("inf")
