"""What the numbers of a recorded run come to: time, speed, energy, quality."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from devrun.errors import DevrunError
from devrun.hooks.evaluation.best import infer_rule
from devrun.rehearsal.report.runs import RecordedRun
from devrun.rehearsal.report.shares import bound_of, finite, shares_of


@dataclass(frozen=True)
class Digest:
    """Figures of one run; None where the run did not log what they are made of."""

    seconds: float | None
    """Wall-clock time of the run, of all its parts where it was resumed, s."""
    shares: dict[str, float] = field(default_factory=dict)
    """Part of the run -> seconds in it; together `seconds`, where that is known."""
    bound: str | None = None
    """What most of the time went to, in words."""
    update_ms: float | None = None
    """Median time of an update, ms."""
    samples_per_sec: float | None = None
    memory_mib: float | None = None
    """Peak, MiB."""
    best_metric: str | None = None
    best_score: float | None = None
    best_step: int | None = None
    best_seconds: float | None = None
    """Training time until the best score, s."""
    joules: float | None = None
    """Energy of the whole run at the power that was given, J."""
    joules_to_best: float | None = None


def digest(run: RecordedRun, *, watts: float | None = None) -> Digest:
    """The figures of `run`; energy where the power of the machine (W) is given."""
    parts = [finite(p.get("duration_seconds")) for p in (*run.earlier, run.facts)]
    known = [seconds for seconds in parts if seconds is not None]
    seconds = finite(sum(known)) if known else None
    shares = _shares(run)
    metric, score, step = _best(run)
    until = None if step is None else _seconds_at(run, step)
    return Digest(
        seconds=seconds,
        shares=shares,
        bound=bound_of(shares),
        update_ms=finite(1000 * _logged(run, "time", np.median)),
        samples_per_sec=finite(_logged(run, "samples_per_sec", np.median)),
        memory_mib=finite(_logged(run, "memory", np.max)),
        best_metric=metric,
        best_score=score,
        best_step=step,
        best_seconds=until,
        joules=_energy(seconds, watts),
        joules_to_best=_energy(until, watts),
    )


def _shares(run: RecordedRun) -> dict[str, float]:
    """As its parts recorded; of a run that has not ended, by its log."""
    shares: dict[str, float] = {}
    for facts in (*run.earlier, run.facts):
        for name, seconds in shares_of(facts).items():
            shares[name] = shares.get(name, 0.0) + seconds
    steps, until = run.train_seconds
    if not shares and len(steps):
        for part in ("data", "copy", "compute"):
            name = "wait_time" if part == "data" else f"{part}_time"
            curve = run.curve(name, "train")
            if curve is not None and len(curve.steps) == len(steps):
                shares[part] = float(curve.sums()[-1])
        shares["hooks"] = max(float(until[-1]) - sum(shares.values()), 0.0)
    return {part: seconds for part, seconds in shares.items() if np.isfinite(seconds)}


def _best(run: RecordedRun) -> tuple[str | None, float | None, int | None]:
    """Metric, score and step by which a run keeps its best weights, ended or not."""
    recorded = run.facts.get("best")
    asked: Any = run.config.get("evaluation.save_best")
    if isinstance(recorded, Mapping):  # which knows what `auto` meant
        asked = recorded.get("metric") or asked
    curve = run.curve(str(asked), "val")
    if curve is None or not len(curve.finite()):
        return None, None, None
    try:
        rule = infer_rule(curve.name, run.config.get("evaluation.rule"))
    except DevrunError:
        return None, None, None
    sign, worst = (1, -np.inf) if rule == "greater" else (-1, np.inf)
    values = np.where(np.isfinite(curve.values), curve.values, worst)
    at = int(np.argmax(sign * values))
    return curve.name, float(values[at]), int(curve.steps[at])


def _seconds_at(run: RecordedRun, step: int) -> float | None:
    steps, until = run.train_seconds
    return finite(float(np.interp(step, steps, until))) if len(steps) else None


def _logged(run: RecordedRun, name: str, reduce: Any) -> float:
    """Of all values that were logged in training; NaN without any."""
    curve = run.curve(name, "train")
    values = np.zeros(0) if curve is None else curve.finite()
    return float(reduce(values)) if len(values) else np.nan


def _energy(seconds: float | None, watts: float | None) -> float | None:
    return None if seconds is None or watts is None else finite(seconds * watts)
