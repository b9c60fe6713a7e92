"""The page of a report, which needs no network.

It holds its data as JSON that no browser takes for markup, its program and uPlot (MIT
licence), and allows itself nothing else: what a log or a config says can be read on it,
never run.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from devrun.rehearsal.report.data import PART, shown
from devrun.rehearsal.shares import ADVICE

_FACTS = {
    "status": "status", "error": "failed because", "stopped": "ended because",
    "device": "device", "versions": "versions", "git": "revision",
    "seed": "seed", "world_size": "processes", "started": "started",
    "command": "command",
}  # fmt: skip
_PARTS = tuple(ADVICE)


def page(data: Mapping[str, Any]) -> str:
    """The page of `report_data`, whole: HTML that opens from a file."""
    program = [_asset("uPlot.iife.min.js"), _asset("report.js")]
    sheets = _asset("uPlot.min.css") + _asset("report.css")
    hashes = " ".join(f"'sha256-{_digest(text)}'" for text in program)
    policy = (
        f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; "
        f"img-src data:; base-uri 'none'; form-action 'none'"
    )
    curves = {
        "runs": [{"name": r["name"], "curves": r["curves"]} for r in data["runs"]],
    }
    # no `<` in it: nothing in a log ends the element
    held = json.dumps(curves, separators=(",", ":")).replace("<", "\\u003c")
    scripts = "\n".join(f"<script>{text}</script>" for text in program)
    title = "devrun report: " + ", ".join(run["name"] for run in data["runs"])
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{_text(title)}</title>
<style>{sheets}</style></head><body>
<h1>{_text(title)}</h1>
{"".join(_body(data))}
<script type="application/json" id="data">{held}</script>
<!-- uPlot: {_text(" ".join(_asset("uPlot.LICENSE").split()).replace("--", "- -"))} -->
{scripts}
</body></html>
"""


def _body(data: Mapping[str, Any]) -> Iterator[str]:
    runs = data["runs"]
    for run in runs:
        for problem in run["problems"]:
            yield f'<p class="warn">{_text(run["name"])}: {_text(problem)}</p>'
    yield "<h2>Runs</h2>" + _table(
        ["", *(run["name"] for run in runs)],
        [[title, *(_fact(run, key) for run in runs)] for key, title in _FACTS.items()]
        + [
            [title, *(show(run["figures"]) for run in runs)] for title, show in _FIGURES
        ],
    )
    yield from _interruptions(runs)
    yield "<h2>Where the time went</h2>"
    for run in runs:
        yield _shares(run, named=len(runs) > 1)
    yield '<h2>Curves</h2><div id="controls"></div><div id="charts"></div>'
    yield from _warnings(runs)
    saved = [
        [run["name"], s["name"] + " (best)" * s["best"], s["step"], _size(s["size"]),
         s["created"] or "", s["problem"] or "whole by its manifest"]
        for run in runs for s in run["checkpoints"]
    ]  # fmt: skip
    if saved:
        head = ["run", "checkpoint", "step", "size", "written", "state"]
        yield "<h2>Checkpoints</h2>" + _table(head, saved)
    if len(runs) > 1:
        yield "<h2>Differences of the configs</h2>"
    elif data["config"]:
        yield "<details><summary>Config</summary>"
    rows = [[key, *map(shown, row)] for key, row in data["config"].items()]
    if rows:
        yield _table(["key", *(run["name"] for run in runs)], rows)
    elif len(runs) > 1:
        yield "<p>None is known.</p>"
    if len(runs) == 1 and rows:
        yield "</details>"


def _interruptions(runs: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    rows = [
        [run["name"], *(shown(part[key]) for key in PART)]
        for run in runs
        for part in run["earlier"]
    ]
    if rows:
        head = ["run", "started", "ended", "because", "iterations", "seconds"]
        yield "<h2>Interruptions, after which a run was resumed</h2>"
        yield _table(head, rows)


def _warnings(runs: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """Each once, with the runs that it came in."""
    found: dict[tuple[str, str], dict[str, int]] = {}
    for run in runs:
        for w in run["warnings"]:
            found.setdefault((w["level"], w["text"]), {})[run["name"]] = w["times"]
    if found:
        yield "<h2>Warnings, those of the devices' reports too</h2>"
    for (level, text), names in found.items():
        often = [
            f"{n}, {times} times" if times > 1 else n for n, times in names.items()
        ]
        head = (
            f"{level.lower()}, {'; '.join(often)}: {text.partition(chr(10))[0][:200]}"
        )
        kind = "warn" if level == "WARNING" else "bad"
        yield (
            f'<details><summary class="{kind}">{_text(head)}</summary>'
            f"<pre>{_text(text)}</pre></details>"
        )


def _shares(run: Mapping[str, Any], *, named: bool) -> str:
    figures = run["figures"]
    total = sum(figures["shares"].values())
    head = f"<h3>{_text(run['name'])}</h3>" if named else ""
    if not total:
        return f"{head}<p>The log has no times.</p>"
    bars, words, legend = "", [], ""
    for name, seconds in sorted(figures["shares"].items(), key=_place_of):
        share = f"{100 * seconds / total:.1f}%"
        words.append(f"{name} {share} ({_duration(seconds)})")
        look = f'class="{_look(name)}"'
        bars += f'<span {look} style="width:{share}" title="{_text(words[-1])}"></span>'
        legend += f"<span><i {look}></i>{_text(words[-1])}</span> "
    said = _text(", ".join(words))
    return (
        f'{head}<div class="bar" role="img" aria-label="{said}">{bars}</div>'
        f'<p class="legend">{legend}</p><p>{_text(shown(figures["bound"]))}</p>'
    )


def _look(part: str) -> str:
    """The class of one part of the time: the same colour in every run."""
    return f"part-{_PARTS.index(part)}" if part in _PARTS else "part-other"


def _place_of(entry: tuple[str, Any]) -> int:
    return _PARTS.index(entry[0]) if entry[0] in _PARTS else len(_PARTS)


def _fact(run: Mapping[str, Any], key: str) -> str:
    value = run["facts"].get(key)
    if key == "device" and isinstance(value, Mapping):
        return f"{value.get('name')}{' (emulated)' * bool(value.get('emulated'))}"
    if key == "versions" and isinstance(value, Mapping):
        return ", ".join(f"{name} {version}" for name, version in value.items())
    return shown(value)


def _energy(joules: float | None, price: float | None) -> str:
    parts = []
    if joules is not None:
        parts.append(f"{joules:,.0f} J ({joules / 3.6e6:.4g} kWh) at the power given")
    if price is not None:
        parts.append(f"{price:.4g} at the price given")
    return "; ".join(parts)


_FIGURES = (
    ("time", lambda f: _duration(f["seconds"])),
    ("an update", lambda f: shown(f["update_ms"], "{:.4g} ms (median)")),
    (
        "samples a second",
        lambda f: shown(f["samples_per_sec"], "{:,.1f} (median)"),
    ),
    ("memory", lambda f: shown(f["memory_mib"], "{:,.0f} MiB at most")),
    (
        "best",
        lambda f: f"{f['best_metric'] or ''} {shown(f['best_score'])}".strip(),
    ),
    ("at step", lambda f: shown(f["best_step"])),
    ("training until then", lambda f: _duration(f["best_seconds"])),
    ("energy and price", lambda f: _energy(f["joules"], f["price"])),
    (
        "until the best",
        lambda f: _energy(f["joules_to_best"], f["price_to_best"]),
    ),
)


def _duration(seconds: float | None) -> str:
    if seconds is None:
        return ""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02} min" if hours else f"{minutes} min {rest:02} s"


def _size(count: int) -> str:
    return f"{count / 2**20:,.1f} MiB"


def _table(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    titles = "".join(f'<th scope="col">{_text(title)}</th>' for title in head)
    body = "".join(
        f"<tr>{''.join(f'<td>{_text(cell)}</td>' for cell in row)}</tr>"
        for row in rows
        if any(str(cell) for cell in row[1:])
    )
    table = f"<table><thead><tr>{titles}</tr></thead><tbody>{body}</tbody></table>"
    return f'<div class="scroll">{table}</div>'


def _text(value: Any) -> str:
    encoded = str(value).encode(errors="backslashreplace")  # JSON has lone surrogates
    return html.escape(encoded.decode())


def _asset(name: str) -> str:
    return (Path(__file__).parent / "page" / name).read_text(encoding="utf-8")


def _digest(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
