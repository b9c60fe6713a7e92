"""`devrun report`: recorded runs as plain data, and as a table."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from devrun.errors import ConfigError, nearest
from devrun.log.jsonlines import plain
from devrun.rehearsal.report.figures import figures_of, sign_of
from devrun.rehearsal.report.runs import Curve, RecordedRun
from devrun.rehearsal.report.shares import bound_of, shares_of

SCHEMA = "devrun.report/4"
PART = ("started", "status", "error", "iterations", "duration_seconds")
"""What is said of a part of a run that was resumed."""


@np.errstate(over="ignore", invalid="ignore")  # a log may have any numbers
def report_data(runs: Sequence[RecordedRun], **how: Any) -> dict[str, Any]:
    """Everything that the page shows, as JSON's types; `docs/report.md` has the keys.

    Args:
        how: the rates and the target of `figures_of`.

    Raises:
        ConfigError: no run has the target's metric.
    """
    found = []
    for name, run, figures in zip(_names(runs), runs, figures_of(runs, **how)):
        shares = _shares(run)
        found.append(
            {
                "name": name,
                "path": str(run.path),
                "facts": run.facts,
                "earlier": [{k: f.get(k) for k in PART} for f in run.earlier],
                "figures": figures,
                "shares": shares,
                "bound": bound_of(shares),
                "curves": [_curve(curve, run) for curve in run.curves],
                "warnings": run.warnings,
                "problems": run.problems,
            }
        )
    whole = {"schema": SCHEMA, "runs": found, "config": _configs(runs)}
    data: dict[str, Any] = plain(whole)
    return data


def comparison(
    runs: Sequence[RecordedRun],
    *,
    sort: str | None = None,
    keys: Sequence[str] = (),
    **how: Any,
) -> list[list[str]]:
    """A row of each run for a terminal or a spreadsheet, behind one of titles.

    Columns are the config's `keys` and the figures.

    Args:
        sort: a column; the best run, or the least value, comes first.
        how: the rates and the target of `figures_of`.

    Raises:
        ConfigError: `sort`, a key or the target's metric is in no run.
    """
    rows: list[dict[str, Any]] = [
        {
            "run": name,
            "status": run.facts.get("status"),
            **{key: run.config[key] for key in keys if key in run.config},
            **figures,
        }
        for name, run, figures in zip(_names(runs), runs, figures_of(runs, **how))
    ]
    titles = list(dict.fromkeys(title for row in rows for title in row))
    for asked in (*keys, *([sort] if sort else [])):
        if asked not in titles:
            raise ConfigError(
                f"{asked!r} is in none of these runs; {nearest(asked, titles)}"
            )
    if sort:
        rows.sort(key=functools.partial(_order, sort, sign_of(sort)))
    return [titles, *([shown(row.get(title)) for title in titles] for row in rows)]


def _order(column: str, sign: int, row: Mapping[str, Any]) -> tuple[int, float, str]:
    """Numbers by their value, then words, then what is not there."""
    value = row.get(column)
    if value is None:
        return 2, 0.0, ""
    try:
        return 0, sign * float(value), ""
    except (TypeError, ValueError):
        return 1, 0.0, str(value)


def _shares(run: RecordedRun) -> dict[str, float]:
    """Part of the run -> seconds, of all parts of one that was resumed."""
    shares: dict[str, float] = {}
    for facts in (*run.earlier, run.facts):
        for name, seconds in shares_of(facts).items():
            shares[name] = shares.get(name, 0.0) + seconds
    return shares


def _curve(curve: Curve, run: RecordedRun) -> dict[str, Any]:
    at, until = run.train_seconds
    return {
        "name": curve.name,
        "mode": curve.mode,
        "steps": curve.steps,
        "seconds": np.interp(curve.steps, at, until).round(3) if len(at) else None,
        "values": curve.values,
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
    keys = dict.fromkeys(key for run in runs for key in run.config)
    table = {key: [run.config.get(key, "(none)") for run in runs] for key in keys}
    if len(runs) == 1:
        return table
    if not all(run.config for run in runs):
        return {}
    return {key: row for key, row in table.items() if any(v != row[0] for v in row)}


def shown(value: Any) -> str:
    """A cell of a table."""
    if value is None:
        return ""
    return f"{value:.5g}" if isinstance(value, float) else str(value)
