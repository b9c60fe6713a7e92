"""What the numbers of a recorded run come to: time, speed, cost, quality."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from devrun.rehearsal.recorded import RecordedRun
from devrun.rehearsal.shares import bound_of, finite, shares_of

__all__ = ["Digest", "digest", "train_seconds"]

HOUR = 3600.0


@dataclass(frozen=True)
class Digest:
    """Figures of one run; None where the run did not log what they are made of."""

    seconds: float | None
    """Wall-clock time of the whole run, s."""
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
    shares = {k: v for k, v in _shares(run).items() if finite(v) is not None}
    seconds = finite(run.facts.get("duration_seconds"))
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


def train_seconds(run: RecordedRun) -> tuple[np.ndarray, np.ndarray]:
    """Updates done, and the seconds of training until then; both empty without times.

    A logged `time` is the mean of the updates since the entry before.
    """
    curve = run.curve("time", "train")
    if curve is None:
        return np.zeros(0), np.zeros(0)
    times = np.where(np.isfinite(curve.values), curve.values, 0.0)
    return curve.steps, np.cumsum(np.diff(curve.steps, prepend=0) * times)


def _shares(run: RecordedRun) -> dict[str, float]:
    """As the newest part of the run recorded; of one that has not ended, by its log."""
    if shares := shares_of(run.facts):
        return shares
    steps, until = train_seconds(run)
    data = run.curve("data_time", "train")
    if not len(steps):
        return {}
    waited = 0.0
    if data is not None and len(data.steps) == len(steps):
        waits = np.where(np.isfinite(data.values), data.values, 0.0)
        waited = float(np.sum(np.diff(steps, prepend=0) * waits))
    return {"data": waited, "step": max(float(until[-1]) - waited, 0.0)}


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
    steps, until = train_seconds(run)
    return finite(float(np.interp(step, steps, until))) if len(steps) else None


def _median(run: RecordedRun, name: str, scale: float = 1.0) -> float | None:
    curve = run.curve(name, "train")
    values = curve.values[np.isfinite(curve.values)] if curve else np.zeros(0)
    return finite(float(np.median(values)) * scale) if len(values) else None


def _peak(run: RecordedRun) -> float | None:
    curve = run.curve("memory", "train")
    values = curve.values[np.isfinite(curve.values)] if curve else np.zeros(0)
    return float(values.max()) if len(values) else None


def _times(
    seconds: float | None, rate: float | None, scale: float = 1.0
) -> float | None:
    if seconds is None or rate is None:
        return None
    return finite(seconds * rate * scale)
