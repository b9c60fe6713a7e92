"""A hook written for MMEngine's runner, on devrun's."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from types import SimpleNamespace
from typing import Any

from devrun.errors import DataError, UnsupportedFeatureError
from devrun.hooks.base import Hook
from devrun.run import Run
from devrun.step import Capability

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
_EVALUATION = (("before_val", "before_val_epoch"), ("after_val_epoch", "after_val"))
_OTHERS = (
    "before_val_iter",
    "after_val_iter",
    "after_val_epoch",
    "before_save_checkpoint",
    "after_load_checkpoint",
)


class EngineHook(Hook):
    """Calls the hook `theirs` in the stages that MMEngine would.

    It sees a runner with what both have (epoch, iter, model, optimizer, ...). What it
    does before and after an evaluation is done around devrun's.

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
            own = stage == "after_val_epoch"  # that of all modes takes no results
            if self._overrides(stage) or (self._has(stage) and not own):
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
        vars(self)["before_run"] = self._beginning(vars(self).get("before_run"))

    def _has(self, stage: str) -> bool:
        """Whether their class overrides the stage, or that of all modes (`_after_iter`)
        which it calls."""
        when, _, rest = stage.partition("_")
        unit = rest.partition("_")[2]
        return self._overrides(stage) or self._overrides(f"_{when}_{unit}")

    def _overrides(self, name: str) -> bool:
        owners = [kind for kind in type(self.theirs).__mro__ if name in vars(kind)]
        return bool(owners) and owners[0].__module__ != "mmengine.hooks.hook"

    def _beginning(
        self, inherited: Callable[[Run], None] | None
    ) -> Callable[[Run], None]:
        @contextmanager
        def evaluating(runner: Run) -> Iterator[None]:
            self._caller(_EVALUATION[0])(runner)
            yield
            self._caller(_EVALUATION[1])(runner)

        evaluates = any(map(self._has, itertools.chain(*_EVALUATION)))

        def before_run(runner: Run) -> None:
            if Capability.HOST_WEIGHTS not in runner.adapter.capabilities:
                logging.getLogger("devrun").warning(
                    "%s: what it changes of the model after the first update does not "
                    "reach the graph that %s has compiled",
                    type(self.theirs).__name__,
                    runner.adapter.name,
                )
            if evaluates:
                runner.eval_contexts.append(evaluating)
            if inherited is not None:
                inherited(runner)

        return before_run

    def _caller(self, names: tuple[str, ...]) -> Callable[[Run], None]:
        def stage(runner: Run) -> None:
            view = EngineView(runner, self.theirs)
            for name in names:
                try:
                    getattr(self.theirs, name)(view)
                except FileNotFoundError as error:
                    kind = type(self.theirs).__name__
                    raise DataError(
                        f"{kind} needs {error.filename!r}, which is not there"
                    ) from error

        return stage

    def _iteration(self, name: str) -> Callable[[Run], None]:
        method = getattr(self.theirs, name)

        def stage(runner: Run) -> None:
            extra = {} if name.startswith("before") else {"outputs": runner.outputs}
            view = EngineView(runner, self.theirs)
            method(view, runner.inner_iter, runner.data_batch, **extra)

        return stage


class EngineView:
    """A run under the names that hooks of MMEngine use."""

    def __init__(self, runner: Run, hook: Any) -> None:
        self._runner, self._hook = runner, hook
        self._resume = runner.iter > 0

    def __getattr__(self, name: str) -> Any:
        runner: Any = vars(self)["_runner"]
        if name in _SAME:
            return getattr(runner, name)
        if name == "optim_wrapper":
            optimizer = runner.optimizer
            groups = getattr(optimizer, "param_groups", None)
            return SimpleNamespace(optimizer=optimizer, param_groups=groups)
        if name == "message_hub":
            hub: Any = import_module("mmengine.logging").MessageHub
            return hub.get_current_instance()
        if name in ("train_dataloader", "train_loop"):
            loader = runner.data_loader or runner.workflow.loaders[0]
            if name == "train_dataloader":
                return loader
            return SimpleNamespace(dataloader=_LoaderView(loader))
        hook = type(vars(self)["_hook"]).__name__
        raise UnsupportedFeatureError(
            f"{hook} reads runner.{name}, which devrun's runner does not have for "
            "hooks of MMEngine; write it as a hook of devrun's"
        )


class _LoaderView:
    """A loader of which a hook may change the data set, and end the workers."""

    def __init__(self, loader: Any) -> None:
        self.dataset = loader.dataset
        self._end = loader.close

    @property
    def _iterator(self) -> None:
        return None

    @_iterator.setter
    def _iterator(self, value: None) -> None:
        self._end()  # the next epoch's workers have the data set as it is then
