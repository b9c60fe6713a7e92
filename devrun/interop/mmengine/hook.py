"""A hook written for MMEngine's runner, on devrun's."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from devrun.errors import UnsupportedFeatureError
from devrun.hooks.base import Hook
from devrun.run import Run

__all__ = ["EngineHook"]

_SAME = (
    "epoch",
    "iter",
    "logger",
    "max_epochs",
    "max_iters",
    "model",
    "rank",
    "work_dir",
    "world_size",
)
"""What both runners have, by one name."""
_STAGES = {
    "before_run": ("before_run", "before_train"),
    "after_run": ("after_train", "after_run"),
    "before_train_epoch": ("before_train_epoch",),
    "after_train_epoch": ("after_train_epoch",),
}
"""Stage of devrun's -> those of MMEngine's that come then."""
_OF_ITERATIONS = ("before_train_iter", "after_train_iter")
_EVALUATION = ("before_val", "before_val_epoch", "after_val_epoch", "after_val")
_OTHERS = (*_EVALUATION, "before_save_checkpoint", "after_load_checkpoint")


class EngineHook(Hook):
    """Calls the hook `theirs` in the stages that MMEngine would.

    It sees a runner with what both have (epoch, iter, model, optimizer, ...).

    Raises:
        UnsupportedFeatureError: a stage, or (during the run) a name of the runner, that
            devrun does not have.
    """

    def __init__(self, theirs: Any) -> None:
        self.theirs = theirs
        priority = getattr(theirs, "priority", None)
        if priority is not None:
            self.priority = priority
        name = type(theirs).__name__
        for stage in _OTHERS:
            if self._has(stage):
                raise UnsupportedFeatureError(
                    f"{name} takes part in {stage}, which hooks of MMEngine cannot do "
                    "on devrun's runner; write it as a hook of devrun's"
                )
        for stage, names in _STAGES.items():
            if any(map(self._has, names)):
                vars(self)[stage] = self._caller(names)
        for stage in _OF_ITERATIONS:
            if self._has(stage):
                vars(self)[stage] = self._iteration(stage)

    def _has(self, stage: str) -> bool:
        """Whether their class overrides the stage itself."""
        owners = [kind for kind in type(self.theirs).__mro__ if stage in vars(kind)]
        return bool(owners) and owners[0].__module__ != "mmengine.hooks.hook"

    def _caller(self, names: tuple[str, ...]) -> Callable[[Run], None]:
        def stage(runner: Run) -> None:
            view = _View(runner, self.theirs)
            for name in names:
                getattr(self.theirs, name)(view)

        return stage

    def _iteration(self, name: str) -> Callable[[Run], None]:
        method = getattr(self.theirs, name)

        def stage(runner: Run) -> None:
            extra = {} if name.startswith("before") else {"outputs": runner.outputs}
            view = _View(runner, self.theirs)
            method(view, runner.inner_iter, runner.data_batch, **extra)

        return stage


class _View:
    """A run under the names that hooks of MMEngine use."""

    def __init__(self, runner: Run, hook: Any) -> None:
        self._runner, self._hook = runner, hook
        self._resume = False

    def __getattr__(self, name: str) -> Any:
        runner: Any = vars(self)["_runner"]
        if name in _SAME:
            return getattr(runner, name)
        if name == "optim_wrapper":
            optimizer = runner.optimizer
            groups = getattr(optimizer, "param_groups", None)
            return SimpleNamespace(optimizer=optimizer, param_groups=groups)
        if name == "train_dataloader":
            return runner.data_loader
        hook = type(vars(self)["_hook"]).__name__
        raise UnsupportedFeatureError(
            f"{hook} reads runner.{name}, which devrun's runner does not have for "
            "hooks of MMEngine; write it as a hook of devrun's"
        )
