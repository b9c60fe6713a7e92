"""What a training shows on every device: its hooks' cost, its gradients, its saves."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from time import perf_counter

from torch import Tensor, nn

from devrun.hooks.base import Hook, Priority
from devrun.probes.finding import Finding
from devrun.probes.probe import Probe, Training, is_ours
from devrun.probes.sites import defined
from devrun.probes.sources import assigned
from devrun.run import Run
from devrun.runners.checkpointer import CHECKPOINTS
from devrun.step import Capability

_STAGES = ("before_train_iter", "after_backward", "after_train_iter")
"""Those that a hook takes part in at every update."""
_SHARE, _LEAST = 0.2, 0.002
"""Of an update's time, and seconds, from which a hook is worth a word."""
_NAMED = 3


class HooksProbe(Probe):
    """Times the stages that the user's own hooks have in every update."""

    priority = Priority.LOWEST

    def built(self, training: Training) -> None:
        self._spent: dict[Hook, float] = defaultdict(float)
        self._seconds, self._intervals, self._updates = 0.0, 0, 0
        self._last: float | None = None
        for hook in training.runner.hooks:
            if is_ours(hook):
                continue
            for stage in set(_STAGES) & set(hook.get_triggered_stages()):
                setattr(hook, stage, self._timed(hook, getattr(hook, stage)))
        training.runner.register_hook(self)

    def after_train_iter(self, runner: Run) -> None:
        now = perf_counter()
        if self._last is not None and runner.inner_iter:
            self._seconds += now - self._last
            self._intervals += 1
        self._updates += 1
        self._last = now

    def _timed(self, hook: Hook, call: Callable[..., None]) -> Callable[..., None]:
        def timed(runner: Run) -> None:
            start = perf_counter()
            call(runner)
            self._spent[hook] += perf_counter() - start

        return timed

    def after(self, training: Training) -> Iterator[Finding]:
        updates = max(self._updates, 1)
        whole = self._seconds / max(self._intervals, 1)
        shown = {
            type(hook).__name__: round(seconds / updates * 1e3, 3)
            for hook, seconds in self._spent.items()
        }
        self.note.fact("ms an update of each hook", shown)
        for hook, seconds in self._spent.items():
            each = seconds / updates
            site = defined(type(hook))
            if site is None or each < max(_LEAST, _SHARE * whole):
                continue
            yield Finding(
                severity="slow",
                kind="hook",
                what=type(hook).__name__,
                why=f"it takes {each * 1e3:.1f} ms of the {whole * 1e3:.1f} ms between "
                "two updates, on the host",
                remedy="do it once in many updates: if self.every_n_iters(runner, 100)",
                site=site,
                per_step=1.0,
            )


class GradientsProbe(Probe):
    """Finds parameters that are to be trained and never get a gradient."""

    def built(self, training: Training) -> None:
        self._seen: set[str] = set()
        if Capability.GRAD_ACCESS in training.runner.adapter.capabilities:
            for name, parameter in training.runner.model.named_parameters():
                if parameter.requires_grad:
                    parameter.register_hook(partial(self._saw, name))

    def _saw(self, name: str, _: Tensor) -> None:
        self._seen.add(name)

    def after(self, training: Training) -> Iterator[Finding]:
        idle = [
            name
            for name, parameter in training.runner.model.named_parameters()
            if parameter.requires_grad and name not in self._seen
        ]
        if not (idle and self._seen):
            return
        more = f" and {len(idle) - _NAMED} more" if len(idle) > _NAMED else ""
        names = ", ".join(idle[:_NAMED]) + more
        yield Finding(
            severity="advice",
            kind="no gradient",
            what=names,
            why="these parameters are to be trained, and no loss depends on them",
            remedy=f"freeze: [{', '.join(idle[:_NAMED])}]"
            if not more
            else "freeze them (freeze: [pattern]), or use them in forward",
            site=_assigned(training.runner.model, idle[0]),
            fix={"freeze": idle},
        )


def _assigned(model: nn.Module, name: str) -> str | None:
    """The user's line that makes the parameter, or the module that it is in."""
    site, owner = None, model
    for part in name.split("."):
        site = assigned(type(owner), part)[0] or site
        owner = getattr(owner, part)
    return site


class SavingProbe(Probe):
    """Bytes of a checkpoint, and how long writing one takes."""

    def built(self, training: Training) -> None:
        self._folder = Path(str(training.runner.work_dir)) / CHECKPOINTS

    def after(self, training: Training) -> Iterable[Finding]:
        folders = [one for one in self._folder.glob("*") if one.is_dir()]
        for folder in folders[:1]:
            sizes = [f.stat().st_size for f in folder.rglob("*") if f.is_file()]
            self.note.fact("bytes of a checkpoint", sum(sizes))
        return ()
