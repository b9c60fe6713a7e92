"""What a run achieved: for `run.json`, and as the last lines on the screen."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from devrun.config.origin import redacted
from devrun.log.jsonlines import NOT_METRICS, read_records
from devrun.redact import MASK, is_secret_key
from devrun.rehearsal.report.shares import bound_of, shares_of
from devrun.text import one_line


def results(runner: Any, work_dir: Path, timestamp: str) -> dict[str, Any]:
    """How far `runner` came and how good it is, as plain data."""
    messages = runner.meta.get("hook_msgs", {})
    best = None
    if messages.get("best_score") is not None:
        indicators = (getattr(hook, "key_indicator", None) for hook in runner.hooks)
        best = {
            "metric": next(filter(None, indicators), None),
            "score": messages["best_score"],
            "checkpoint": messages.get("best_ckpt"),
        }
    return {
        "epochs": runner.epoch,
        "iterations": runner.iter,
        "stopped": runner.state.why_ended,
        "seconds": _seconds(runner),
        "skipped_updates": int(runner.adapter.stats().get("skipped_updates", 0)),
        "not_finite": runner.not_finite,
        "metrics": last_validation(work_dir / f"{timestamp}.log.json"),
        "best": best,
        "last_checkpoint": messages.get("last_ckpt"),
    }


def _seconds(runner: Any) -> dict[str, float] | None:
    """By part of the run, where a timer is there."""
    from devrun.hooks.timer import IterTimerHook

    for hook in runner.hooks:
        if isinstance(hook, IterTimerHook):
            return {part: round(spent, 3) for part, spent in hook.spent.items()}
    return None


def last_validation(log: Path) -> dict[str, Any]:
    """Metrics of the last validation in a `.log.json`; empty where there are none."""
    found: dict[str, Any] = {}
    at = None
    for record in read_records(log):
        if record.get("mode") == "val":
            metrics = {k: v for k, v in record.items() if k not in NOT_METRICS}
            # an evaluation and a val phase after the same update are one
            found = {**found, **metrics} if record.get("step") == at else metrics
            at = record.get("step")
    return found


def summary(facts: Mapping[str, Any], work_dir: Path, *, dry_run: bool) -> str:
    """The last lines of `devrun train`."""
    device = facts["device"]["name"]
    device += " (emulated)" if facts["device"]["emulated"] else ""
    done = f"{facts['epochs']} epochs, {facts['iterations']} iterations"
    lines = [
        f"done: {done} in {facts['duration_seconds']:.1f} s on {device}",
        f"stopped: {one_line(facts['stopped'])}",
    ]
    if dry_run:
        return "\n".join([*lines, "dry run: nothing was written"])
    if facts["skipped_updates"]:
        left_out = f"{facts['skipped_updates']} of {facts['iterations']} updates"
        lines.append(f"left out: {left_out} (not finite, or over the loss scale)")
    if facts["not_finite"]:
        lines.append(f"not finite: {facts['not_finite']} has nan or infinite values")
    if facts["metrics"]:
        lines.append(f"last validation: {listed(facts['metrics'])}")
    checkpoint = facts["last_checkpoint"]
    if facts["best"]:
        best = facts["best"]
        checkpoint = best["checkpoint"] or checkpoint
        score = f"{best['metric'] or ''} {_shown(best['score'])}".lstrip()
        lines.append(f"best: {score}  {best['checkpoint'] or ''}".rstrip())
    if facts["last_checkpoint"]:
        lines.append(f"checkpoint: {facts['last_checkpoint']}")
    lines.append(f"logs: {work_dir / facts['timestamp']}.log, .log.json, run.json")
    if bound := bound_of(shares_of(facts)):
        lines.append(f"time: {bound}")
    folder = shlex.quote(str(work_dir))
    if checkpoint:
        at, whole = Path(checkpoint), work_dir.absolute()
        if whole in at.parents:  # as the folder was named, which may be a secret
            at = work_dir / at.relative_to(whole)
        words = f"{folder}/config.yaml {shlex.quote(str(at))}"
        lines.append(f"evaluate: devrun test {words}")
    lines.append(f"report: devrun report {folder}")
    return "\n".join(lines)


def masked(words: Sequence[str]) -> list[str]:
    """A command line with the values of secret keys hidden."""
    shown = []
    for word in words:
        key, equals, value = word.partition("=")
        if equals and any(is_secret_key(part) for part in key.split(".")):
            value = MASK
        shown.append(f"{key}{equals}{redacted(value)}")
    return shown


def listed(metrics: Mapping[str, Any]) -> str:
    """`loss 0.0119, accuracy 0.9972`."""
    return ", ".join(f"{name} {_shown(value)}" for name, value in metrics.items())


def _shown(value: Any) -> str:
    return f"{value:.4f}" if isinstance(value, float) else str(value)
