"""A runner in a notebook: how far it is, its curve of the loss, and its metrics."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

from devrun.log.jsonlines import NOT_METRICS, read_records

WIDTH, HEIGHT = 480, 120
"""Of the curve, in pixels."""


def html_of(runner: Any) -> str:
    """What `_repr_html_` shows: of the log of values that the run wrote so far.

    https://ipython.readthedocs.io/en/stable/config/integrating.html#rich-display
    """
    parts = [f"<p>{escape(repr(runner))}</p>"]
    records = _records(runner)
    train = [one for one in records if one.get("mode") == "train" and "loss" in one]
    if len(train) > 1:
        parts.append(_curve([(one["step"], one["loss"]) for one in train]))
    if rows := [one for one in records if one.get("mode") == "val"]:
        parts.append(_table(rows))
    return "\n".join(parts)


def _records(runner: Any) -> list[dict[str, Any]]:
    """The lines of `TextLoggerHook`'s file; none without a work_dir."""
    if runner.work_dir is None:
        return []
    return list(read_records(Path(runner.work_dir, f"{runner.timestamp}.log.json")))


def _curve(points: Sequence[tuple[int, Any]]) -> str:
    """The loss by update; a loss that is not finite leaves a gap in the log."""
    known = [(step, y) for step, y in points if isinstance(y, (int, float))]
    if len(known) < 2:
        return ""
    (first, _), (last, _) = known[0], known[-1]
    low, high = min(y for _, y in known), max(y for _, y in known)
    across = WIDTH / max(last - first, 1)
    down = HEIGHT / (high - low or 1.0)
    line = " ".join(
        f"{(step - first) * across:.1f},{(high - y) * down:.1f}" for step, y in known
    )
    return (
        f"<p>loss {known[0][1]:.4g} to {known[-1][1]:.4g}</p>"
        f'<svg width="{WIDTH}" height="{HEIGHT + 4}" viewBox="0 -2 {WIDTH} '
        f'{HEIGHT + 4}"><polyline points="{line}" fill="none" stroke="#1f77b4" '
        'stroke-width="1.5"/></svg>'
    )


def _table(rows: Sequence[dict[str, Any]]) -> str:
    """A row for each evaluation, of the metrics that one had."""
    names = list(dict.fromkeys(k for one in rows for k in one if k not in NOT_METRICS))
    body = [
        "".join(
            f"<td>{escape(_shown(one.get(name)))}</td>" for name in ["step", *names]
        )
        for one in rows
    ]
    head = "".join(f"<th>{escape(name)}</th>" for name in ["update", *names])
    lines = "".join(f"<tr>{cells}</tr>" for cells in body)
    return f"<table><tr>{head}</tr>{lines}</table>"


def _shown(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:.4f}" if isinstance(value, float) else str(value)
