"""What a training shows on every device: its hooks' cost, its gradients, its saves."""

from __future__ import annotations

import inspect
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from time import perf_counter

from devrun.hooks.base import Hook, Priority
from devrun.rehearsal.check.findings import Finding
from devrun.rehearsal.check.probe import Probe
from devrun.rehearsal.check.sites import user_line
from devrun.run import Run
from devrun.runners.checkpointer import CHECKPOINTS
from devrun.runners.training import Training
from devrun.step import Capability

_STAGES = ("before_train_iter", "after_backward", "after_train_iter")
"""Those that a hook takes part in at every update."""
_SHARE, _LEAST = 0.2, 0.002
"""Of an update's time, and seconds, from which a hook is worth a word."""
_NAMED = 3
_CHECK = str(__package__)
"""Whose hooks are here for the rehearsal alone."""


class HooksProbe(Probe):
    """Times the stages that the user's own hooks have in every update."""

    def built(self, training: Training) -> None:
        self._spent: dict[Hook, float] = defaultdict(float)
        self._whole = _Whole()
        training.runner.register_hook(self._whole)
        for hook in training.runner.hooks:
            for stage in set(_STAGES) & set(hook.get_triggered_stages()):
                setattr(hook, stage, self._timed(hook, getattr(hook, stage)))
        training.runner.table.refresh()

    def _timed(self, hook: Hook, call: Callable[..., None]) -> Callable[..., None]:
        def timed(runner: Run) -> None:
            start = perf_counter()
            call(runner)
            self._spent[hook] += perf_counter() - start

        return timed

    def after(self, training: Training) -> None:
        updates = max(self._whole.updates, 1)
        whole = self._whole.seconds / max(self._whole.intervals, 1)
        shown = {
            type(hook).__name__: round(seconds / updates * 1e3, 3)
            for hook, seconds in self._spent.items()
            if not type(hook).__module__.startswith(_CHECK)
        }
        self.note.fact("ms an update of each hook", shown)
        for hook, seconds in self._spent.items():
            each = seconds / updates
            site = _source(type(hook))
            if site is None or each < max(_LEAST, _SHARE * whole):
                continue
            self.note.found(
                Finding(
                    severity="slow",
                    kind="hook",
                    what=type(hook).__name__,
                    why=f"it takes {each * 1e3:.1f} ms of the {whole * 1e3:.1f} ms "
                    "between two updates, on the host",
                    remedy="do it once in many updates: if self.every_n_iters(runner, "
                    "100)",
                    site=site,
                    per_step=1.0,
                )
            )


class _Whole(Hook):
    """The seconds from update to update."""

    priority = Priority.LOWEST

    def __init__(self) -> None:
        self.seconds, self.intervals, self.updates = 0.0, 0, 0
        self._start: float | None = None

    def after_train_iter(self, runner: Run) -> None:
        now = perf_counter()
        if self._start is not None and runner.inner_iter:
            self.seconds += now - self._start
            self.intervals += 1
        self.updates += 1
        self._start = now


class GradientsProbe(Probe):
    """Finds parameters that are to be trained and never get a gradient."""

    def built(self, training: Training) -> None:
        self._seen: set[str] = set()
        self._watch: _Gradients | None = None
        if Capability.GRAD_ACCESS in training.runner.adapter.capabilities:
            self._watch = _Gradients()
            training.runner.register_hook(self._watch)

    def after(self, training: Training) -> None:
        if self._watch is None or not self._watch.updates:
            return
        idle = [
            name
            for name, parameter in training.runner.model.named_parameters()
            if parameter.requires_grad and name not in self._watch.seen
        ]
        if not idle:
            return
        more = f" and {len(idle) - _NAMED} more" if len(idle) > _NAMED else ""
        names = ", ".join(idle[:_NAMED]) + more
        self.note.found(
            Finding(
                severity="advice",
                kind="no gradient",
                what=names,
                why="these parameters are to be trained, and no loss depends on them",
                remedy=f"freeze: [{', '.join(idle[:_NAMED])}]"
                if not more
                else "freeze them (freeze: [pattern]), or use them in forward",
                fix={"freeze": idle},
            )
        )


class _Gradients(Hook):
    def __init__(self) -> None:
        self.seen: set[str] = set()
        self.updates = 0

    def after_backward(self, runner: Run) -> None:
        self.updates += 1
        for name, parameter in runner.model.named_parameters():
            if parameter.grad is not None:
                self.seen.add(name)


class SavingProbe(Probe):
    """Bytes of a checkpoint, and how long writing one takes."""

    def built(self, training: Training) -> None:
        self._folder = Path(str(training.runner.work_dir)) / CHECKPOINTS

    def after(self, training: Training) -> None:
        folders = [one for one in self._folder.glob("*") if one.is_dir()]
        for folder in folders[:1]:
            sizes = [f.stat().st_size for f in folder.rglob("*") if f.is_file()]
            self.note.fact("bytes of a checkpoint", sum(sizes))


def _source(kind: type) -> str | None:
    """Where the user defined the class; None for one of devrun's or a library's."""
    try:
        file = inspect.getsourcefile(kind)
        _, line = inspect.getsourcelines(kind)
    except (OSError, TypeError):
        return None
    return user_line([(str(file), line)])
