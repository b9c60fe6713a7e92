"""`devrun report`: recorded runs as plain data, and as a table."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from devrun.errors import ConfigError, nearest
from devrun.hooks.evaluation.best import infer_rule
from devrun.log.jsonlines import json_number
from devrun.redact import redact
from devrun.rehearsal.report.cost import Rates, columns_of, ratio
from devrun.rehearsal.report.digest import Digest, digest
from devrun.rehearsal.report.runs import Curve, RecordedRun

SCHEMA = "devrun.report/2"
POINTS = 20_000
"""Of a curve at most, about."""
NO_RESULTS = ("lr", "momentum", "memory", "time", "data_time")
"""Logged values of a validation that say nothing of the model."""
PART = ("started", "status", "error", "iterations", "duration_seconds")
"""What is said of a part of a run that was resumed."""


@np.errstate(over="ignore", invalid="ignore")  # a log may have any numbers
def report_data(
    runs: Sequence[RecordedRun],
    *,
    rates: Sequence[Rates] = (),
    target: tuple[str, float] | None = None,
) -> dict[str, Any]:
    """Everything that the page shows, as JSON's types; `docs/report.md` has the keys.

    Raises:
        ConfigError: no run has a value that another has too, or that of the `target`.
    """
    logged = [{c.name for c in run.curves} for run in runs if run.curves]
    if len(logged) > 1 and not any(a & b for a in logged for b in logged if a is not b):
        raise ConfigError(
            "these runs have no logged value in common; report on each by itself"
        )
    names = _names(runs)
    return {
        "schema": SCHEMA,
        "runs": [
            plain(
                {
                    "name": name,
                    "path": str(run.path),
                    "facts": run.facts,
                    "earlier": [{k: f.get(k) for k in PART} for f in run.earlier],
                    "figures": asdict(figures),
                    "curves": [_curve(curve, run) for curve in run.curves],
                    "latency": run.sweeps,
                    "warnings": [asdict(warned) for warned in run.warnings],
                    "problems": run.problems,
                }
            )
            for name, run, figures in zip(names, runs, digests(runs, rates, target))
        ],
        "config": plain(_configs(runs)),
    }


def comparison(
    runs: Sequence[RecordedRun],
    *,
    sort: str | None = None,
    keys: Sequence[str] = (),
    rates: Sequence[Rates] = (),
    target: tuple[str, float] | None = None,
) -> list[list[str]]:
    """A row of each run for a terminal or a spreadsheet, behind one of titles.

    Columns are the config's `keys`, what the last validation measured, and what the
    run took.

    Args:
        sort: a column; the best run, or the least value, comes first.
        rates: of the machine of each run, for what it cost.
        target: metric and value up to which that is told too.

    Raises:
        ConfigError: `sort`, a key or the target's metric is in no run.
    """
    rows = [
        {
            "run": name,
            "status": shown(run.facts.get("status")),
            **_cells(run, keys),
        }
        | _costs(figures, target)
        for name, run, figures in zip(_names(runs), runs, digests(runs, rates, target))
    ]
    titles = list(dict.fromkeys(title for row in rows for title in row))
    for asked in (*keys, *([sort] if sort else [])):
        if asked not in titles:
            raise ConfigError(
                f"{asked!r} is in none of these runs; {nearest(asked, titles)}"
            )
    if sort:
        rows.sort(key=functools.partial(_order, sort, _sign(sort)))
    return [titles, *([shown(row.get(title)) for title in titles] for row in rows)]


def _cells(run: RecordedRun, keys: Sequence[str]) -> dict[str, Any]:
    own = {key: run.config[key] for key in keys if key in run.config}
    last = {
        c.name: c.finite()[-1]
        for c in run.curves
        if c.mode == "val" and len(c.finite())
    }
    measured = {name: f"{last[name]:.5g}" for name in last if name not in NO_RESULTS}
    return {**own, **measured}


def digests(
    runs: Sequence[RecordedRun],
    rates: Sequence[Rates],
    target: tuple[str, float] | None,
) -> list[Digest]:
    """Of each run, with the ratio to the first: to the target, else of the whole.

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
    found = [digest(r, rates=rate, target=target) for r, rate in zip(runs, given)]
    if len(runs) > 1 and (target or any(rate != Rates() for rate in given)):
        compared = "to_target" if target else "whole"
        first = found[0].costs[compared]
        for figures in found:
            figures.costs["ratio"] = ratio(first, figures.costs[compared])
    return found


def _costs(figures: Digest, target: tuple[str, float] | None) -> dict[str, Any]:
    named = {"seconds": figures.seconds, "samples/s": figures.samples_per_sec}
    named.update(columns_of(figures.costs, "target" if target is None else target[0]))
    return {name: f"{value:.5g}" for name, value in named.items() if value is not None}


def _sign(column: str) -> int:
    """-1 for a metric of which more is better."""
    try:
        return -1 if infer_rule(column) == "greater" else 1
    except ConfigError:  # a key of the config, or a metric of the user's
        return 1


def _order(column: str, sign: int, row: Mapping[str, Any]) -> tuple[int, float, str]:
    """Numbers by their value, then words, then what is not there."""
    value = row.get(column)
    if value is None:
        return 2, 0.0, ""
    try:
        return 0, sign * float(value), ""
    except (TypeError, ValueError):
        return 1, 0.0, str(value)


def _curve(curve: Curve, run: RecordedRun) -> dict[str, Any]:
    steps, values = thinned(curve.steps, curve.values, POINTS)
    at, until = run.train_seconds
    return {
        "name": curve.name,
        "mode": curve.mode,
        "steps": steps,
        "seconds": np.interp(steps, at, until) if len(at) else None,
        "values": values,
    }


def _names(runs: Sequence[RecordedRun]) -> list[str]:
    """The folders' names; as much of their paths as tells them apart."""
    paths = [run.path.resolve().parts for run in runs]
    for depth in range(1, max(map(len, paths)) + 1):
        names = ["/".join(parts[-depth:]) for parts in paths]
        if len(set(names)) == len(names):
            return names
    return names


def _configs(runs: Sequence[RecordedRun]) -> dict[str, list[Any]]:
    """Key -> its value in each run, of keys that are not equal in all of them."""
    known = [run for run in runs if run.config]
    keys = dict.fromkeys(key for run in known for key in run.config)
    table = {key: [run.config.get(key, "(none)") for run in runs] for key in keys}
    if len(runs) == 1 or len(known) < len(runs):
        return {} if len(runs) > 1 else table
    return {key: row for key, row in table.items() if any(v != row[0] for v in row)}


def plain(value: Any) -> Any:
    """`value` in JSON's types; secrets masked; numbers that JSON lacks as text."""
    if isinstance(value, Mapping):
        return {str(key): plain(entry) for key, entry in value.items()}
    if isinstance(value, np.ndarray):
        rounded = np.char.mod("%.7g", value) if value.dtype.kind == "f" else value
        return [json_number(v) for v in rounded.astype(value.dtype).tolist()]
    if isinstance(value, (list, tuple)):
        return [plain(entry) for entry in value]
    if isinstance(value, np.generic):
        return plain(value.item())
    if isinstance(value, float):
        return json_number(value)
    return redact(value) if isinstance(value, str) else value


def shown(value: Any, form: str = "{}") -> str:
    return "" if value is None else form.format(value)


def thinned(
    steps: np.ndarray, values: np.ndarray, points: int
) -> tuple[np.ndarray, np.ndarray]:
    """At most about `points` of them: the least and the greatest of each stretch, and
    its first that is not finite."""
    if len(values) <= points:
        return steps, values
    kept: list[np.ndarray] = []
    for stretch in np.array_split(np.arange(len(values)), points // 2):
        odd = stretch[~np.isfinite(values[stretch])]
        finite = stretch[np.isfinite(values[stretch])]
        order = finite[np.argsort(values[finite], kind="stable")]
        kept += odd[:1], order[:1], order[1:][-1:]
    at = np.sort(np.concatenate(kept))
    return steps[at], values[at]
