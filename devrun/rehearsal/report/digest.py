"""What the numbers of a recorded run come to: time, speed, energy, quality."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from devrun.errors import DevrunError
from devrun.hooks.evaluation.best import infer_rule
from devrun.rehearsal.report.cost import Cost, Rates, cost
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
    measured: bool = False
    """Whether counters told the energy (`EnergyHook`)."""
    costs: dict[str, Cost] = field(default_factory=dict)
    """Of the `whole`, `to_best`, `to_target`, `per_sample`, `per_million_tokens`."""


def digest(
    run: RecordedRun,
    *,
    rates: Rates | None = None,
    target: tuple[str, float] | None = None,
) -> Digest:
    """The figures of `run`; what it cost at `rates`, also until its first validation
    with the `target`: a metric and its value."""
    parts = [finite(p.get("duration_seconds")) for p in (*run.earlier, run.facts)]
    known = [seconds for seconds in parts if seconds is not None]
    seconds = finite(sum(known)) if known else None
    shares = _shares(run)
    metric, score, step = _best(run)
    until = None if step is None else _seconds_at(run, step)
    asked = {"to_best": step, "to_target": _reached(run, target)}
    costs = _costs(run, seconds, asked, rates or Rates())
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
        measured=run.curve("energy", "train") is not None,
        costs=costs,
    )


def _costs(
    run: RecordedRun,
    seconds: float | None,
    until: Mapping[str, int | None],
    rates: Rates,
) -> dict[str, Cost]:
    """Of the whole run, until some of its steps, and of training a sample."""
    energy = run.curve("energy", "train")
    steps = run.train_seconds[0]

    def at(step: int | None) -> Cost:
        if step is None:
            return Cost()
        measured = (
            None if energy is None else np.interp(step, energy.steps, energy.sums())
        )
        return cost(_seconds_at(run, step), rates, finite(measured))

    whole = None if energy is None else finite(float(energy.sums()[-1]))
    samples = _samples(run)
    each = at(int(steps[-1]) if len(steps) else None) / samples
    return {
        "whole": cost(seconds, rates, whole),
        **{name: at(step) for name, step in until.items()},
        "per_sample": each,
        "per_million_tokens": 1e6 * (each / rates.tokens),
    }


def _samples(run: RecordedRun) -> float | None:
    """That were trained on, as far as the log goes."""
    rate, time = run.curve("samples_per_sec", "train"), run.curve("time", "train")
    if rate is None or time is None or len(rate.steps) != len(time.steps):
        return None
    return finite(
        float(np.sum(np.diff(time.steps, prepend=0) * time.values * rate.values))
    )


def _reached(run: RecordedRun, target: tuple[str, float] | None) -> int | None:
    """The step of the first validation with the target."""
    curve = None if target is None else run.curve(target[0], "val")
    if target is None or curve is None:
        return None
    try:
        rule = infer_rule(target[0])
    except DevrunError:  # a metric of the user's
        rule = str(run.config.get("evaluation.rule"))
    sign = -1 if rule == "less" else 1
    steps = curve.steps[sign * curve.values >= sign * target[1]]
    return int(steps[0]) if len(steps) else None


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
