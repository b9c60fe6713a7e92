"""A recorded run against the training of a config now: do its numbers come again?

The config is trained for as many updates as it takes to log a few values, into a folder
that is removed, and both are read alike: the values of the log, and the weights of
checkpoints of the same updates. Of the recorded run nothing is written.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from devrun.checkpoint import read_checkpoint
from devrun.config.dump import to_plain
from devrun.errors import ConfigError, DevrunError
from devrun.hooks.base import Hook
from devrun.hooks.logger.hook import THROUGHPUT, TIMES, LoggerHook
from devrun.rehearsal.compare import Comparison, Side, compared
from devrun.rehearsal.recording import Key, Recording, kept, move_weights, short
from devrun.rehearsal.runs import Curve, RecordedRun, flat, read_run
from devrun.run import Run

LOGGED, FAR = 5, 100
"""Logged values that are compared unless told otherwise, and updates for them at most
(where it takes more to the first one, so many)."""
SAVED = 3
"""Checkpoints that are compared at most."""
OF_THE_MACHINE = (*TIMES, THROUGHPUT, "memory")
"""Logged values that no training repeats."""
RATES = ("lr", "momentum")
NOT_COMPARED = ("work_dir", "resume_from", "auto_resume", "seed", "launcher")
"""Keys of a config that say where and how, not what."""


def reach(run: RecordedRun) -> int:
    """Updates that show whether `run` comes again."""
    logged = sorted({int(s) for curve in _logged(run) for s in curve.steps})
    saved = [s.step for s in run.checkpoints if s.problem is None and s.step <= FAR]
    first = logged[:1] or saved[:1]
    if not first:
        raise ConfigError(
            f"{str(run.path)!r} has neither logged values of training nor a checkpoint "
            f"of the first {FAR} updates: there is nothing to compare with"
        )
    near = [step for step in logged[:LOGGED] if step <= FAR]
    return max(first[0], *near[-1:], *saved[:1])


def against(
    cfg: Mapping[str, Any],
    run: RecordedRun,
    *,
    steps: int | None = None,
    facts: Mapping[str, Any] | None = None,
) -> Comparison:
    """Train `cfg` and say where the recorded `run` parts from it.

    Args:
        cfg: a checked config, with the seed of the run.
        steps: updates; None for those that it takes to compare a few values.
        facts: what is known of now as `run.json` would have it, for the differences.

    Raises:
        ConfigError: the run went on from another one, or has nothing to compare.
        DevrunError: `cfg` cannot be built or run.
    """
    _check_beginning(run)
    again = Again(cfg, f"{cfg.get('device', 'auto')} now", run)
    far = reach(run) if steps is None else steps
    recorded = Recorded(run)
    if steps is not None and not recorded.record(steps).records:
        raise ConfigError(
            f"--steps {steps} ends before anything that {str(run.path)!r} has kept; "
            f"give {reach(run)} or more, or leave it out"
        )
    found = compared(recorded, again, steps=far)
    now = {**(facts or {}), **again.facts}
    return replace(found, differences=differences(run, cfg, now))


class Recorded(Side):
    """A run by its log and checkpoints."""

    measures = False

    def __init__(self, run: RecordedRun) -> None:
        self.run, self.label = run, str(run.path)

    def record(self, steps: int, rounding: float = 0.0, move: int = 0) -> Recording:
        return _recording(self.run, self.label, steps)


@dataclass
class Again(Side):
    """The training of a config, logged and saved where a recorded run was."""

    cfg: Mapping[str, Any]
    label: str
    run: RecordedRun
    facts: dict[str, Any] = field(default_factory=dict)
    """Of this training, as `run.json` has them."""

    def record(self, steps: int, rounding: float = 0.0, move: int = 0) -> Recording:
        interval = min((int(c.steps[0]) for c in _logged(self.run)), default=1)
        saved = {s.step for s in self.run.checkpoints if s.step <= steps}
        with short(self.cfg, steps) as training:
            runner = training.runner
            for hook in runner.hooks:
                if isinstance(hook, LoggerHook):
                    hook.interval = interval  # a dry run's is 1
            runner.register_hook(_Save(saved))
            move_weights(runner.model, rounding, move)
            training.run()
            adapter = runner.adapter
            self.facts = {
                "device": {"name": adapter.name, "emulated": adapter.emulated},
                "world_size": runner.world_size,
            }
            found = _recording(read_run(str(runner.work_dir)), self.label, steps)
            found.precision = runner.session.policy.precision
        return found


class _Save(Hook):
    """Saves after these updates, as the recorded run did."""

    priority = "LOWEST"

    def __init__(self, steps: set[int]) -> None:
        self.steps = steps

    def after_train_iter(self, runner: Run) -> None:
        if runner.iter + 1 in self.steps:
            runner.save_checkpoint(save_optimizer=False)


def _logged(run: RecordedRun) -> list[Curve]:
    """Curves of training that come again with the same seed."""
    return [c for c in run.curves if c.mode == "train" and c.name not in OF_THE_MACHINE]


def _recording(run: RecordedRun, label: str, steps: int) -> Recording:
    found = Recording(label, "fp32")
    for curve in _logged(run):
        kind = "rate" if curve.name.split("/")[0].split("_")[0] in RATES else "logged"
        early = curve.steps <= steps
        for step, value in zip(curve.steps[early], curve.values[early], strict=True):
            key = Key(int(step), kind, curve.name)
            found.records[key] = torch.tensor([value], dtype=torch.float64)
            found.blur[key] = _blur(float(value))
    whole = [s for s in run.checkpoints if s.problem is None and s.step <= steps]
    for saved in whole[:SAVED]:
        try:
            place = run.path / "checkpoints" / saved.name
            model = read_checkpoint(place, parts=["model"])["model"]
        except DevrunError as error:
            raise ConfigError(f"{saved.name} cannot be compared: {error}") from error
        for name, value in model.items():
            if torch.is_tensor(value) and value.is_floating_point() and value.numel():
                found.records[Key(saved.step, "weight", name)] = kept(value)
    return found


def _blur(value: float) -> float:
    """What the rounding of two logs may make of `value`, relative to it."""
    size = abs(value)
    if not np.isfinite(size) or size == 0:
        return 0.0
    return 1e-4 if size < 1e-3 else 1e-5 / size


def _check_beginning(run: RecordedRun) -> None:
    before = run.config.get("resume_from")
    if not isinstance(before, str) or before == "auto":
        return
    if run.path.resolve() not in Path(before).resolve().parents:
        raise ConfigError(
            f"{str(run.path)!r} went on from {before!r}: its first updates are those "
            "of that run; compare with that one"
        )


def differences(
    run: RecordedRun, cfg: Mapping[str, Any], now: Mapping[str, Any]
) -> dict[str, list[Any]]:
    """Key -> [in the run, now] of what is not the same: device, versions, config."""
    found = {}
    facts = run.facts
    for key in ("device", "world_size", "seed", "git", "versions"):
        if key in facts and key in now:
            old, new = (dict(flat(side[key], key)) for side in (facts, now))
            found.update(_unequal(old, new))
    if run.config:
        changed = _unequal(run.config, dict(flat(to_plain(cfg))))
        told = {k: v for k, v in changed.items() if k.split(".")[0] not in NOT_COMPARED}
        found.update({f"config {k}": pair for k, pair in told.items()})
    return found


def _unequal(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, list[Any]]:
    pairs = {k: [old.get(k), new.get(k)] for k in sorted({*old, *new})}
    return {k: pair for k, pair in pairs.items() if _text(pair[0]) != _text(pair[1])}


def _text(value: Any) -> str:
    """Lists and tuples are one; a key that is null is as one that is not there."""
    return json.dumps(value, default=str)
