"""What the numbers of a recorded run come to: time, speed, cost, quality."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np

from devrun.rehearsal.runs import RecordedRun
from devrun.rehearsal.shares import bound_of, finite, shares_of

HOUR = 3600.0


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
    price: float | None = None
    joules_to_best: float | None = None
    price_to_best: float | None = None


def digest(
    run: RecordedRun,
    *,
    watts: float | None = None,
    price_per_hour: float | None = None,
) -> Digest:
    """The figures of `run`; energy and price where power (W) and price are given."""
    parts = [*run.earlier, run.facts]
    seconds = _sum(finite(part.get("duration_seconds")) for part in parts)
    shares = {k: v for k, v in _shares(run).items() if finite(v) is not None}
    metric, score, step = _best(run)
    until = None if step is None else _seconds_at(run, step)
    return Digest(
        seconds=seconds,
        shares=shares,
        bound=bound_of(shares),
        update_ms=_median(run, "time", 1000.0),
        samples_per_sec=_median(run, "samples_per_sec"),
        memory_mib=_peak(run),
        best_metric=metric,
        best_score=score,
        best_step=step,
        best_seconds=until,
        joules=_times(seconds, watts),
        price=_times(seconds, price_per_hour, 1 / HOUR),
        joules_to_best=_times(until, watts),
        price_to_best=_times(until, price_per_hour, 1 / HOUR),
    )


def _shares(run: RecordedRun) -> dict[str, float]:
    """As its parts recorded; of a run that has not ended, by its log."""
    shares: dict[str, float] = {}
    for facts in (*run.earlier, run.facts):
        for name, seconds in shares_of(facts).items():
            shares[name] = shares.get(name, 0.0) + seconds
    if shares:
        return shares
    steps, until = run.train_seconds
    if not len(steps):
        return {}
    names = {"data": "wait_time", "copy": "copy_time", "compute": "compute_time"}
    rest = "hooks"
    if run.curve("wait_time", "train") is None:  # of an older devrun
        rest, names = "step", {"data": "data_time"}
    for part, name in names.items():
        curve = run.curve(name, "train")
        if curve is not None and len(curve.steps) == len(steps):
            shares[part] = float(curve.sums()[-1])
    shares[rest] = max(float(until[-1]) - sum(shares.values()), 0.0)
    return shares


def _best(run: RecordedRun) -> tuple[str | None, float | None, int | None]:
    best = run.facts.get("best")
    step = next((saved.step for saved in run.checkpoints if saved.best), None)
    if not isinstance(best, Mapping) or finite(best.get("score")) is None:
        return _best_so_far(run, step)
    metric, score = best.get("metric"), finite(best["score"])
    curve = run.curve(str(metric), "val")
    if step is None and curve is not None and score is not None:
        away = np.abs(np.where(np.isnan(curve.values), np.inf, curve.values) - score)
        step = int(curve.steps[np.argmin(away)])
    return None if metric is None else str(metric), score, step


def _best_so_far(
    run: RecordedRun, step: int | None
) -> tuple[str | None, float | None, int | None]:
    """Of a run that has not written how it ended: as logged at its best checkpoint."""
    metric = str(run.config.get("evaluation.save_best"))
    curve = run.curve(metric, "val")
    if step is None or curve is None or step not in curve.steps:
        return None, None, None
    return metric, float(curve.values[curve.steps == step][0]), step


def _seconds_at(run: RecordedRun, step: int) -> float | None:
    steps, until = run.train_seconds
    return finite(float(np.interp(step, steps, until))) if len(steps) else None


def _median(run: RecordedRun, name: str, scale: float = 1.0) -> float | None:
    values = _logged(run, name)
    return finite(float(np.median(values)) * scale) if len(values) else None


def _peak(run: RecordedRun) -> float | None:
    values = _logged(run, "memory")
    return float(values.max()) if len(values) else None


def _logged(run: RecordedRun, name: str) -> np.ndarray:
    curve = run.curve(name, "train")
    return np.zeros(0) if curve is None else curve.finite()


def _sum(values: Iterable[float | None]) -> float | None:
    """Of those that are known; None where none is."""
    known = [value for value in values if value is not None]
    return finite(sum(known)) if known else None


def _times(
    seconds: float | None, rate: float | None, scale: float = 1.0
) -> float | None:
    if seconds is None or rate is None:
        return None
    return finite(seconds * rate * scale)
