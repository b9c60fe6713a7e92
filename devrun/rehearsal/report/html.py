"""The page of a report, which needs no network.

It holds its data as JSON that no browser takes for markup, its program and uPlot (MIT
licence), and allows itself nothing else: what a log or a config says can be read on it,
never run.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from devrun.rehearsal.report.data import PART, shown
from devrun.rehearsal.report.shares import ADVICE

_FOLDER = Path(__file__).parent / "page"
_FACTS = {
    "status": "status", "error": "failed because", "stopped": "ended because",
    "heard": "last heard of",
    "device": "device", "versions": "versions", "git": "revision",
    "seed": "seed", "world_size": "processes", "started": "started",
    "command": "command",
}  # fmt: skip
_SWEPT = {
    "batch": "batch", "per_second": "samples/s", "p50_ms": "p50 ms", "p99_ms": "p99 ms",
    "graphs": "graphs", "transfers": "transfers",
}  # fmt: skip
_AXES = ("per_second", "p50_ms", "p99_ms")
_CHART = (480, 200)
_COLUMNS = 5
"""Runs at the most that have a column each; more have a row."""
_LONG = ("versions", "command")
"""Facts that no row of many has room for."""
_PARTS = tuple(ADVICE)
"""Each has a colour, the same in every run."""


def page(data: Mapping[str, Any]) -> str:
    """The page of `report_data`, whole: HTML that opens from a file."""
    runs = data["runs"]
    curves = {"runs": [{"name": r["name"], "curves": r["curves"]} for r in runs]}
    env = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_FOLDER),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
    )
    env.filters["csp"] = _source
    names = [run["name"] for run in runs]
    facts = [
        ["", *names],
        *([title, *(_fact(run, k) for run in runs)] for k, title in _FACTS.items()),
        *([t, *(show(run["figures"]) for run in runs)] for t, show in _FIGURES),
    ]
    facts = [row for row in facts if any(row[1:])]
    if many := len(runs) > _COLUMNS:
        facts = [row for row in facts if row[0] not in _LONG]
    text = env.get_template("page.html").render(
        title=f"devrun report: {f'{len(runs)} runs' if many else ', '.join(names)}",
        names=names,
        runs=[{**run, "parts": _parts(run["figures"]["shares"])} for run in runs],
        facts=[list(row) for row in zip(*facts)] if many else facts,
        interruptions=[
            [run["name"], *(shown(part[key]) for key in PART)]
            for run in runs
            for part in run["earlier"]
        ],
        sweeps=[_sweep(run["name"], one) for run in runs for one in run["latency"]],
        warnings=_warnings(runs),
        config=[[key, *map(shown, row)] for key, row in data["config"].items()],
        # no `<` in it: nothing in a log ends the element
        curves=json.dumps(curves, separators=(",", ":")).replace("<", "\\u003c"),
        programs=[_asset("uPlot.iife.min.js"), _asset("report.js")],
        sheets=[_asset("uPlot.min.css"), _asset("report.css")],
        licence=" ".join(_asset("uPlot.LICENSE").split()).replace("--", "- -"),
    )
    return text.encode(errors="backslashreplace").decode()  # JSON has lone surrogates


def _sweep(name: str, sweep: Mapping[str, Any]) -> dict[str, Any]:
    """Rows of a sweep of batch sizes and, where it has times, lines of p50 and p99 by
    throughput in a chart of `_CHART`."""
    points = sweep["points"]
    keys = [key for key in _SWEPT if any(point[key] is not None for point in points)]
    table = [[shown(point[key]) for key in keys] for point in points]
    timed = [p for p in points if all(isinstance(p[k], float) for k in _AXES)]
    width, height = _CHART
    right = max((point["per_second"] for point in timed), default=0.0)
    top = max((point["p99_ms"] for point in timed), default=0.0)
    across, up = width / (right or 1.0), height / (top or 1.0)
    lines = {
        key: " ".join(
            f"{p['per_second'] * across:.1f},{height - p[key] * up:.1f}" for p in timed
        )
        for key in (_AXES[1:] if timed else ())
    }
    ends = {"right": f"{right:.4g}", "top": f"{top:.4g}"}
    titles = [_SWEPT[key] for key in keys]
    name = f"{name}, {sweep['name']}"
    return {"name": name, "titles": titles, "rows": table, "lines": lines, **ends}


def _warnings(runs: Sequence[Mapping[str, Any]]) -> dict[tuple[str, str], list[str]]:
    """Each once, with the runs that it came in."""
    found: dict[tuple[str, str], list[str]] = {}
    for run in runs:
        for w in run["warnings"]:
            often = f", {w['times']} times" if w["times"] > 1 else ""
            found.setdefault((w["level"], w["text"]), []).append(run["name"] + often)
    return found


def _parts(shares: Mapping[str, float]) -> list[dict[str, str]]:
    """Of the bar of time, in an order that is the same in every run."""
    total = sum(shares.values())
    ordered = sorted(shares, key=lambda p: (*_PARTS, p).index(p))
    return [
        {
            "look": str(_PARTS.index(part)) if part in _PARTS else "other",
            "share": (share := f"{100 * shares[part] / total:.1f}%"),
            "said": f"{part} {share} ({_duration(shares[part])})",
        }
        for part in ordered
    ]


def _fact(run: Mapping[str, Any], key: str) -> str:
    value = run["facts"].get(key)
    if key == "device" and isinstance(value, Mapping):
        return f"{value.get('name')}{' (emulated)' * bool(value.get('emulated'))}"
    if key == "versions" and isinstance(value, Mapping):
        return ", ".join(f"{name} {version}" for name, version in value.items())
    return shown(value)


def _cost(figures: Mapping[str, Any], part: str) -> str:
    """`120 J (3.3e-05 kWh), measured; money 0.02`."""
    found = figures["costs"].get(part) or {}
    said = []
    if (joules := found.get("joules")) is not None:
        source = "measured" if figures["measured"] else "at the power given"
        said.append(f"{joules:,.4g} J ({joules / 3.6e6:.4g} kWh) {source}")
    if (money := found.get("money")) is not None:
        said.append(f"money {money:.5g}")
    return "; ".join(said)


def _ratio(figures: Mapping[str, Any]) -> str:
    found = figures["costs"].get("ratio") or {}
    return ", ".join(f"{k} {v:.4g}" for k, v in found.items() if v is not None)


def _duration(seconds: float | None) -> str:
    if seconds is None:
        return ""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02} min" if hours else f"{minutes} min {rest:02} s"


_FIGURES = (
    ("time", lambda f: _duration(f["seconds"])),
    ("an update", lambda f: shown(f["update_ms"], "{:.4g} ms (median)")),
    ("samples a second", lambda f: shown(f["samples_per_sec"], "{:,.1f} (median)")),
    ("memory", lambda f: shown(f["memory_mib"], "{:,.0f} MiB at most")),
    ("best", lambda f: f"{f['best_metric'] or ''} {shown(f['best_score'])}".strip()),
    ("at step", lambda f: shown(f["best_step"])),
    ("training until then", lambda f: _duration(f["best_seconds"])),
    ("cost", lambda f: _cost(f, "whole")),
    ("cost until the best", lambda f: _cost(f, "to_best")),
    ("time to the target", lambda f: _duration(f["costs"]["to_target"]["seconds"])),
    ("cost to the target", lambda f: _cost(f, "to_target")),
    ("cost of a sample", lambda f: _cost(f, "per_sample")),
    ("of a million tokens", lambda f: _cost(f, "per_million_tokens")),
    ("times less than the first run", _ratio),
)


def _asset(name: str) -> str:
    return (_FOLDER / name).read_text(encoding="utf-8")


def _source(text: str) -> Markup:
    """The one source that the page's policy admits for this program."""
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    return Markup(f"'sha256-{digest}'")
