"""`devrun report`: recorded runs as plain data, and as one page that needs no network.

The page holds its data as JSON that no browser takes for markup, its program and
uPlot (MIT licence), and allows itself nothing else: what a log or a config says can be
read on it, never run.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import html
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from importlib.resources import files
from typing import Any

import numpy as np

from devrun.errors import ConfigError, nearest
from devrun.hooks.evaluation.best import infer_rule
from devrun.log.jsonlines import json_number
from devrun.redact import redact
from devrun.rehearsal.digest import Digest, digest
from devrun.rehearsal.runs import Curve, RecordedRun
from devrun.rehearsal.shares import ADVICE
from devrun.rehearsal.thinning import thinned

SCHEMA = "devrun.report/1"
POINTS = 400_000
"""Of all curves of a page together; each has its share of them, and 2,000 at least."""
DEPTH = 100
"""Of mappings and lists in each other; what is deeper is left out."""
_FACTS = {
    "status": "status", "error": "failed because", "stopped": "ended because",
    "device": "device", "versions": "versions", "git": "revision",
    "seed": "seed", "world_size": "processes", "started": "started",
    "command": "command",
}  # fmt: skip
_PARTS = tuple(ADVICE)
NO_RESULTS = ("lr", "momentum", "memory", "time", "data_time")
"""Logged values of a validation that say nothing of the model."""
_PART = ("started", "status", "error", "iterations", "duration_seconds")


@np.errstate(over="ignore", invalid="ignore")  # a log may have any numbers
def report_data(
    runs: Sequence[RecordedRun],
    *,
    watts: float | None = None,
    price_per_hour: float | None = None,
) -> dict[str, Any]:
    """Everything that the page shows, as JSON's types; `docs/report.md` has the keys.

    Raises:
        ConfigError: no run has a value that another has too.
    """
    shared = [{c.name for c in run.curves} for run in runs]
    if len(runs) > 1 and not any(a & b for a in shared for b in shared if a is not b):
        raise ConfigError(
            "these runs have no logged value in common; report on each by itself"
        )
    share = POINTS // max(sum(len(run.curves) for run in runs), 1)
    names = _names(runs)
    return {
        "schema": SCHEMA,
        "runs": [
            plain(
                {
                    "name": name,
                    "path": str(run.path),
                    "facts": run.facts,
                    "earlier": [{k: f.get(k) for k in _PART} for f in run.earlier],
                    "figures": asdict(
                        digest(run, watts=watts, price_per_hour=price_per_hour)
                    ),
                    "curves": [_curve(c, run, max(share, 2000)) for c in run.curves],
                    "checkpoints": [asdict(saved) for saved in run.checkpoints],
                    "warnings": [asdict(warned) for warned in run.warnings],
                    "problems": run.problems,
                }
            )
            for name, run in zip(names, runs, strict=True)
        ],
        "config": plain(_configs(runs)),
    }


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


def comparison(
    runs: Sequence[RecordedRun],
    *,
    sort: str | None = None,
    keys: Sequence[str] = (),
    **costs: float | None,
) -> list[list[str]]:
    """A row of each run for a terminal or a spreadsheet, behind one of titles.

    Columns are the config's `keys`, what the last validation measured, and what the
    run took.

    Args:
        sort: a column; the best run, or the least value, comes first.
        costs: `watts` and `price_per_hour`, as of `report_data`.

    Raises:
        ConfigError: `sort` or a key is in no run.
    """
    rows = [
        {"run": name, "status": _value(run.facts.get("status")), **_cells(run, keys)}
        | _costs(digest(run, **costs))
        for name, run in zip(_names(runs), runs, strict=True)
    ]
    titles = list(dict.fromkeys(title for row in rows for title in row))
    for asked in (*keys, *([sort] if sort else [])):
        if asked not in titles:
            raise ConfigError(
                f"{asked!r} is in none of these runs; {nearest(asked, titles)}"
            )
    if sort:
        rows.sort(key=functools.partial(_order, sort, _sign(sort)))
    return [titles, *([_value(row.get(title)) for title in titles] for row in rows)]


def _cells(run: RecordedRun, keys: Sequence[str]) -> dict[str, Any]:
    own = {key: run.config[key] for key in keys if key in run.config}
    last = {
        c.name: c.finite()[-1]
        for c in run.curves
        if c.mode == "val" and len(c.finite())
    }
    measured = {name: f"{last[name]:.5g}" for name in last if name not in NO_RESULTS}
    return {**own, **measured}


def _costs(figures: Digest) -> dict[str, Any]:
    named = {
        "seconds": figures.seconds,
        "samples/s": figures.samples_per_sec,
        "J": figures.joules,
        "price": figures.price,
    }
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


def _curve(curve: Curve, run: RecordedRun, points: int) -> dict[str, Any]:
    steps, values, means = thinned(curve.steps, curve.values, points)
    at, until = run.train_seconds
    finite = curve.finite()
    return {
        "name": curve.name,
        "mode": curve.mode,
        "steps": steps,
        "seconds": np.interp(steps, at, until) if len(at) else None,
        "values": values,
        "means": means if len(values) < len(curve.values) else None,
        "summary": {
            "points": len(curve.values),
            "first": curve.values[0],
            "last": curve.values[-1],
            "min": finite.min() if len(finite) else None,
            "max": finite.max() if len(finite) else None,
            "odd": len(curve.values) - len(finite),
        },
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


def plain(value: Any, depth: int = 0) -> Any:
    """`value` in JSON's types; secrets masked; numbers that JSON lacks as text."""
    if depth > DEPTH:
        return "..."
    if isinstance(value, Mapping):
        return {str(key): plain(entry, depth + 1) for key, entry in value.items()}
    if isinstance(value, np.ndarray):
        rounded = np.char.mod("%.7g", value) if value.dtype.kind == "f" else value
        return [json_number(v) for v in rounded.astype(value.dtype).tolist()]
    if isinstance(value, (list, tuple)):
        return [plain(entry, depth + 1) for entry in value]
    if isinstance(value, np.generic):
        return plain(value.item())
    if isinstance(value, float):
        return json_number(value)
    return redact(value) if isinstance(value, str) else value


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
    rows = [[key, *map(_value, row)] for key, row in data["config"].items()]
    if rows:
        yield _table(["key", *(run["name"] for run in runs)], rows)
    elif len(runs) > 1:
        yield "<p>None is known.</p>"
    if len(runs) == 1 and rows:
        yield "</details>"


def _interruptions(runs: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    rows = [
        [run["name"], *(_value(part[key]) for key in _PART)]
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
        f'<p class="legend">{legend}</p><p>{_text(_value(figures["bound"]))}</p>'
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
    return _value(value)


def _energy(joules: float | None, price: float | None) -> str:
    parts = []
    if joules is not None:
        parts.append(f"{joules:,.0f} J ({joules / 3.6e6:.4g} kWh) at the power given")
    if price is not None:
        parts.append(f"{price:.4g} at the price given")
    return "; ".join(parts)


_FIGURES = (
    ("time", lambda f: _duration(f["seconds"])),
    ("an update", lambda f: _value(f["update_ms"], "{:.4g} ms (median)")),
    ("samples a second", lambda f: _value(f["samples_per_sec"], "{:,.1f} (median)")),
    ("memory", lambda f: _value(f["memory_mib"], "{:,.0f} MiB at most")),
    ("best", lambda f: f"{f['best_metric'] or ''} {_value(f['best_score'])}".strip()),
    ("at step", lambda f: _value(f["best_step"])),
    ("training until then", lambda f: _duration(f["best_seconds"])),
    ("energy and price", lambda f: _energy(f["joules"], f["price"])),
    (
        "until the best",
        lambda f: _energy(f["joules_to_best"], f["price_to_best"]),
    ),
)


def _value(value: Any, form: str = "{}") -> str:
    return "" if value is None else form.format(value)


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
    return (files(__package__) / "page" / name).read_text(encoding="utf-8")


def _digest(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
