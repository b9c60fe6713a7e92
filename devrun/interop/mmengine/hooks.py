"""Hooks of MMEngine and its packages on devrun's runner."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from types import SimpleNamespace
from typing import Any

from devrun.config.numbers import whole_number
from devrun.construct import where
from devrun.errors import (
    ConfigError,
    DataError,
    UnknownNameError,
    UnsupportedFeatureError,
)
from devrun.hooks.base import Hook, Priority
from devrun.hooks.schedules.hook import optimizers_of, write
from devrun.interop.openmmlab import hooks as openmmlab
from devrun.run import Run
from devrun.scopes import scoped
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
_REFUSED = (
    "before_val_iter",
    "after_val_iter",
    "after_val_epoch",
    "before_save_checkpoint",
    "after_load_checkpoint",
)


_COUNTS = ("last_step", "_global_step")
"""What changes in a scheduler, besides the values that it gives."""


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
        self.name = type(theirs).__name__
        priority = getattr(theirs, "priority", None)
        if priority is not None:
            self.priority = priority
        for stage in _REFUSED:
            own = stage == "after_val_epoch"  # that of all modes takes no results
            if self._overrides(stage) or (self._has(stage) and not own):
                raise UnsupportedFeatureError(
                    f"{self.name} takes part in {stage}, which hooks of MMEngine "
                    "cannot do on devrun's runner; write it as a hook of devrun's"
                )

    def _has(self, stage: str) -> bool:
        """Whether their class overrides the stage, or that of all modes (`_after_iter`)
        which it calls."""
        when, _, rest = stage.partition("_")
        unit = rest.partition("_")[2]
        return self._overrides(stage) or self._overrides(f"_{when}_{unit}")

    def _overrides(self, name: str) -> bool:
        owners = [kind for kind in type(self.theirs).__mro__ if name in vars(kind)]
        return bool(owners) and owners[0].__module__ != "mmengine.hooks.hook"

    def get_triggered_stages(self) -> list[str]:
        """Those of an epoch or iteration only where theirs has them."""
        stages = super().get_triggered_stages()
        return [name for name in stages if name.endswith("_run") or self._has(name)]

    def before_run(self, runner: Run) -> None:
        if Capability.HOST_WEIGHTS not in runner.adapter.capabilities:
            logging.getLogger("devrun").warning(
                "%s: what it changes of the model after the first update does not "
                "reach the graph that %s has compiled",
                self.name,
                runner.adapter.name,
            )
        if self._evaluating not in runner.eval_contexts:
            runner.eval_contexts.append(self._evaluating)
        self._call(runner, "before_run")
        self._call(runner, "before_train")

    @contextmanager
    def _evaluating(self, runner: Run) -> Iterator[None]:
        self._call(runner, "before_val")
        self._call(runner, "before_val_epoch")
        yield
        self._call(runner, "after_val_epoch")
        self._call(runner, "after_val")

    def before_train_epoch(self, runner: Run) -> None:
        self._call(runner, "before_train_epoch")

    def before_train_iter(self, runner: Run) -> None:
        self._call(runner, "before_train_iter", runner.inner_iter, runner.data_batch)

    def after_train_iter(self, runner: Run) -> None:
        args = (runner.inner_iter, runner.data_batch, runner.outputs)
        self._call(runner, "after_train_iter", *args)

    def after_train_epoch(self, runner: Run) -> None:
        self._call(runner, "after_train_epoch")

    def after_run(self, runner: Run) -> None:
        self._call(runner, "after_train")
        self._call(runner, "after_run")

    def _call(self, runner: Run, stage: str, *args: Any) -> None:
        try:
            getattr(self.theirs, stage)(EngineView(runner, self.name), *args)
        except FileNotFoundError as error:
            raise DataError(
                f"{self.name} needs {error.filename!r}, which is not there"
            ) from error


class EngineView:
    """A run under the names that hooks of MMEngine use."""

    def __init__(self, runner: Run, hook: str) -> None:
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
            return _message_hub()
        if name in ("train_dataloader", "train_loop"):
            loader = runner.data_loader or runner.workflow.loaders[0]
            if name == "train_dataloader":
                return loader
            return SimpleNamespace(dataloader=_LoaderView(loader))
        raise UnsupportedFeatureError(
            f"{vars(self)['_hook']} reads runner.{name}, which devrun's runner does "
            "not have for hooks of MMEngine; write it as a hook of devrun's"
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


class RuntimeInfoHook(Hook):
    """Writes how far the run is into MMEngine's `MessageHub`, where parts look it up.

    `CosineEMA` of BYOL and MoCo v3 reads `max_iters` there.
    """

    priority: Any = Priority.VERY_HIGH

    def before_run(self, runner: Run) -> None:
        self._write(runner, "max_epochs", "max_iters", "epoch", "iter")
        hub = _message_hub()
        hub.update_info("loop_stage", "train")
        dataset = EngineView(runner, "RuntimeInfoHook").train_dataloader.dataset
        hub.update_info("dataset_meta", getattr(dataset, "metainfo", None))
        if self._evaluating not in runner.eval_contexts:
            runner.eval_contexts.append(self._evaluating)

    def before_train_epoch(self, runner: Run) -> None:
        self._write(runner, "epoch")

    def before_train_iter(self, runner: Run) -> None:
        self._write(runner, "iter")

    def _write(self, runner: Run, *names: str) -> None:
        hub = _message_hub()
        for name in names:
            hub.update_info(name, getattr(runner, name))

    @contextmanager
    def _evaluating(self, runner: Run) -> Iterator[None]:
        hub = _message_hub()
        hub.update_info("loop_stage", "val")
        yield
        hub.update_info("loop_stage", "train")


def _message_hub() -> Any:
    return import_module("mmengine.logging").MessageHub.get_current_instance()


class PreciseBNHook(openmmlab.PreciseBNHook):
    """MMPretrain's: as MMClassification's, on batches that are not mixed up.

    The model prepares them as for an evaluation, and its layers are in training mode.
    """

    def _look(self, runner: Run, batch: Any) -> None:
        model: Any = runner.model
        model(**model.data_preprocessor(batch, False))


class ParamSchedulerHook(Hook):
    """Steps each scheduler after an epoch, or after an update where it counts those.

    They change the value that is there in turn, as in MMEngine: a warm-up and what
    follows it are two of them. The step is taken just before the next iteration or
    epoch, so that what is logged after an update is the rate it was done with.

    Args:
        schedulers: a dict for each, in MMEngine's words: `type` (`scope.Name` or a
            name of MMEngine's), its arguments, `begin`, `end` (by default the end of
            the run), `by_epoch`, and `convert_to_iter_based`, which counts the epochs
            of the others in updates.
        batches_per_update: what MMEngine counts are batches; with accumulation an
            update has several, and has the rate of its last.

    Raises:
        ConfigError: no such scheduler, or one that does not take its arguments.
    """

    priority: Any = Priority.VERY_HIGH

    def __init__(
        self, schedulers: Sequence[Mapping[str, Any]], batches_per_update: int = 1
    ) -> None:
        self.batches = whole_number("batches_per_update", batches_per_update)
        if not schedulers:
            raise ConfigError.of("schedulers", "must be a list of dicts with a type")
        self.sections = list(schedulers)
        self._kinds = [_kind(section) for section in self.sections]
        self._built: list[Any] = []
        self._optimizer: Any = None
        self._saved: dict[str, Any] | None = None
        self._dry = False

    def prepare_dry_run(self) -> bool:
        self._dry = True
        return True

    def before_run(self, runner: Run) -> None:
        if self._optimizer is not runner.optimizer:
            self._optimizer, self._built = runner.optimizer, []

    def before_train_epoch(self, runner: Run) -> None:
        if not self._built:
            self._build(runner)
        self._step_to(self._batch(runner), by_epoch=False)
        self._step_to(runner.epoch, by_epoch=True)

    def before_train_iter(self, runner: Run) -> None:
        if not self._built:  # a run that counts iterations may have no epochs
            self._build(runner)
        self._step_to(self._batch(runner), by_epoch=False)

    def state_dict(self) -> dict[str, Any]:
        """Each scheduler's own state, and the values in force."""
        if not self._built:
            return self._saved or {}
        return {
            "schedulers": [
                {key: vars(one)[key] for key in _COUNTS} for one in self._built
            ],
            "values": [
                {key: _plain(group[key]) for key in self._names if key in group}
                for group in self._groups
            ],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Taken once the schedulers are built, with the length of an epoch known."""
        self._saved = state
        if self._built:
            self._restore()

    @property
    def _groups(self) -> list[dict[str, Any]]:
        return [
            group for one in self._built[:1] for group in one.optimizer.param_groups
        ]

    @property
    def _names(self) -> set[str]:
        return {one.param_name for one in self._built} | {"momentum", "betas"}

    def _batch(self, runner: Run) -> int:
        """The last batch of the next update, from 0."""
        return (runner.iter + 1) * self.batches - 1

    def _build(self, runner: Run) -> None:
        (optimizer,) = optimizers_of(runner).values()
        for group in optimizer.param_groups:  # a resumed run begins at the first value
            write(group, "lr", float(group.get("initial_lr", group["lr"])))
        length = len(runner.data_loader) * self.batches
        batches = runner.max_iters and runner.max_iters * self.batches
        for kind, section in zip(self._kinds, self.sections):
            options = {k: v for k, v in section.items() if k not in ("type", "_scope_")}
            in_epochs = options.get("by_epoch", True)
            last = runner.max_epochs if in_epochs else batches
            if last is not None and self._dry:  # too short for what begins later
                options["end"] = max(last, options.get("begin", 0) + 1)
            elif last is not None:
                options.setdefault("end", last)
            elif in_epochs:
                raise ConfigError(
                    f"the scheduler {section['type']} counts epochs, but this run is "
                    "counted in iterations; give by_epoch=False",
                    place=where(section),
                )
            make = kind
            if options.pop("convert_to_iter_based", False):
                options["epoch_length"], make = length, kind.build_iter_from_epoch
            try:
                self._built.append(make(optimizer, **options))
            except Exception as error:
                raise ConfigError(
                    f"the scheduler {section['type']} cannot be built: {error}",
                    place=where(section),
                ) from error
        if self._saved is not None:
            self._restore()

    def _restore(self) -> None:
        saved, self._saved = self._saved or {}, None
        if len(saved["schedulers"]) != len(self._built):
            raise ConfigError(
                f"the checkpoint has {len(saved['schedulers'])} schedulers, this run "
                f"{len(self._built)}: begin a run of its own with --load-from"
            )
        for one, state in zip(self._built, saved["schedulers"]):
            vars(one).update(state)
        for group, values in zip(self._groups, saved["values"]):
            for key, value in values.items():
                group[key] = tuple(value) if isinstance(value, list) else value

    def _step_to(self, progress: int, *, by_epoch: bool) -> None:
        chosen = [one for one in self._built if one.by_epoch == by_epoch]
        while late := [one for one in chosen if one._global_step < progress]:
            for one in late:
                # An update was done, on some devices not by `optimizer.step`
                one.optimizer._global_step = one._global_step
                one.step()


def _plain(value: Any) -> Any:
    """A scheduled value of a group as JSON has it."""
    return [*map(float, value)] if isinstance(value, tuple) else float(value)


def _kind(section: Mapping[str, Any]) -> Any:
    """The class that a section names; only one of MMEngine's schedulers."""
    name = str(section.get("type"))
    if "." not in name:
        name = f"{section.get('_scope_') or 'mmengine'}.{name}"
    found = scoped("learning-rate scheduler", name)
    if found is None:
        raise UnknownNameError(f"no scheduler {name!r}", place=where(section, "type"))
    return found.target
