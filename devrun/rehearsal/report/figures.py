"""What recorded runs come to: quality, time, speed, memory, energy, money."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from devrun.errors import ConfigError, nearest
from devrun.hooks.evaluation.best import infer_rule
from devrun.log.jsonlines import NOT_METRICS
from devrun.rehearsal.report.cost import Cost, Rates, cost, ratio
from devrun.rehearsal.report.runs import RecordedRun
from devrun.rehearsal.report.shares import finite

UNITS = ("seconds", "J", "money")


def figures_of(
    runs: Sequence[RecordedRun],
    rates: Sequence[Rates] = (),
    target: tuple[str, float] | None = None,
) -> list[dict[str, Any]]:
    """Title -> number of each run, of what it logged and recorded.

    Args:
        rates: of the machine of each run, for what it cost.
        target: metric and value up to which that is told too, and the ratio.

    Raises:
        ConfigError: no run has the target's metric.
    """
    known = {c.name for run in runs for c in run.curves if c.mode == "val"}
    if target and target[0] not in known:
        raise ConfigError(
            f"--target {target[0]} is in no validation of these runs; "
            f"{nearest(target[0], sorted(known))}"
        )
    given = rates or [Rates()] * len(runs)
    costs = [_costs(run, rate, target) for run, rate in zip(runs, given)]
    if len(runs) > 1 and (target or any(rate != Rates() for rate in given)):
        compared = f" to {target[0]}" if target else ""
        for one in costs:
            one[" ratio"] = ratio(costs[0][compared], one[compared])
    return [_figures(run, each) for run, each in zip(runs, costs)]


def _figures(run: RecordedRun, costs: dict[str, Cost]) -> dict[str, Any]:
    """Those that are known, in the order in which they are read."""
    validated = (c for c in run.curves if c.mode == "val" and c.name not in NOT_METRICS)
    metrics = {c.name: c.finite()[-1] for c in validated if len(c.finite())}
    best = run.facts.get("best")
    if isinstance(best, dict) and best.get("metric"):
        metrics[f"best {best['metric']}"] = finite(best.get("score"))
    source = "measured" if run.curve("energy", "train") else "by --watts"
    found = {
        **metrics,
        "ms/update": 1000 * _logged(run, "time", np.median),
        "samples/s": _logged(run, "samples_per_sec", np.median),
        "MiB": _logged(run, "memory", np.max),
        **{
            f"{unit}{title}": value
            for title, one in costs.items()
            for unit, value in zip(UNITS, one)
        },
        "energy": None if costs[""].joules is None else source,
    }
    return {k: v for k, v in found.items() if v is not None and v == v}


def _logged(run: RecordedRun, name: str, reduce: Any) -> float:
    """Of all values that were logged in training; NaN without any."""
    curve = run.curve(name, "train")
    values = np.zeros(0) if curve is None else curve.finite()
    return float(reduce(values)) if len(values) else np.nan


def _costs(
    run: RecordedRun, rates: Rates, target: tuple[str, float] | None
) -> dict[str, Cost]:
    """Of the whole run, of all its parts where it was resumed, and until the target."""
    energy = run.curve("energy", "train")
    parts = [finite(p.get("duration_seconds")) for p in (*run.earlier, run.facts)]
    seconds = sum(part for part in parts if part is not None) or None
    joules = None if energy is None else finite(float(energy.sums()[-1]))
    found = {"": cost(seconds, rates, joules)}
    if target:
        step, (steps, until) = _reached(run, *target), run.train_seconds
        found[f" to {target[0]}"] = Cost()
        if step is not None and len(steps):
            if energy is not None:
                joules = finite(np.interp(step, energy.steps, energy.sums()))
            spent = float(np.interp(step, steps, until))
            found[f" to {target[0]}"] = cost(spent, rates, joules)
    return found


def _reached(run: RecordedRun, metric: str, value: float) -> int | None:
    """The step of the first validation with the target."""
    curve = run.curve(metric, "val")
    if curve is None:
        return None
    steps = curve.steps[sign_of(metric, run) * (curve.values - value) <= 0]
    return int(steps[0]) if len(steps) else None


def sign_of(metric: str, run: RecordedRun | None = None) -> int:
    """-1 for a metric of which more is better."""
    try:
        rule = infer_rule(metric)
    except ConfigError:  # a metric of the user's, or a key of the config
        rule = str(run and run.config.get("evaluation.rule"))
    return -1 if rule == "greater" else 1
