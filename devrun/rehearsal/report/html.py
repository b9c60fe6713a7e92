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

from devrun.rehearsal.report.data import shown
from devrun.rehearsal.report.shares import ADVICE

_FOLDER = Path(__file__).parent / "page"
_FACTS = {
    "status": "status", "error": "failed because", "stopped": "ended because",
    "heard": "last heard of",
    "device": "device", "versions": "versions", "git": "revision",
    "seed": "seed", "world_size": "processes", "started": "started",
    "command": "command",
}  # fmt: skip


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
    env.filters["shown"] = shown
    names = [run["name"] for run in runs]
    many = f"{len(runs)} runs"
    titles = dict.fromkeys(title for run in runs for title in run["figures"])
    text = env.get_template("page.html").render(
        title=f"devrun report: {', '.join(names) if len(runs) < 6 else many}",
        names=names,
        runs=[{**run, "parts": _parts(run["shares"])} for run in runs],
        facts=[
            *([title, *(_fact(run, k) for run in runs)] for k, title in _FACTS.items()),
            *(
                [title, *(run["figures"].get(title) for run in runs)]
                for title in titles
            ),
        ],
        interruptions=[
            [run["name"], *part.values()] for run in runs for part in run["earlier"]
        ],
        warnings=_warnings(runs),
        config=[[key, *row] for key, row in data["config"].items()],
        # no `<` in it: nothing in a log ends the element
        curves=json.dumps(curves, separators=(",", ":")).replace("<", "\\u003c"),
        programs=[_asset("uPlot.iife.min.js"), _asset("report.js")],
        sheets=[_asset("uPlot.min.css"), _asset("report.css")],
        licence=" ".join(_asset("uPlot.LICENSE").split()).replace("--", "- -"),
    )
    return text.encode(errors="backslashreplace").decode()  # JSON has lone surrogates


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
    rows = []
    for look, part in enumerate(ADVICE):  # each has a colour
        if part in shares:
            share = f"{100 * shares[part] / total:.1f}%"
            said = f"{part} {share} ({shares[part]:.4g} s)"
            rows.append({"look": str(look), "share": share, "said": said})
    return rows


def _fact(run: Mapping[str, Any], key: str) -> Any:
    value = run["facts"].get(key)
    if key == "device" and isinstance(value, Mapping):
        return f"{value.get('name')}{' (emulated)' * bool(value.get('emulated'))}"
    if key == "versions" and isinstance(value, Mapping):
        return ", ".join(f"{name} {version}" for name, version in value.items())
    return value


def _asset(name: str) -> str:
    return (_FOLDER / name).read_text(encoding="utf-8")


def _source(text: str) -> Markup:
    """The one source that the page's policy admits for this program."""
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    return Markup(f"'sha256-{digest}'")
