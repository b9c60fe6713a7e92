"""`ParamSchedulerHook`: MMEngine's schedulers, as many as there are, in one hook."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any

from devrun.config.numbers import whole_number
from devrun.construct import where
from devrun.errors import ConfigError, UnknownNameError
from devrun.hooks.base import Hook, Priority
from devrun.hooks.schedules.hook import optimizers_of, write
from devrun.hooks.schedules.torch_scheduler import encode, overlay
from devrun.run import Run
from devrun.scopes import attach


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
            "schedulers": [encode(one.state_dict()) for one in self._built],
            "values": [
                encode({key: group[key] for key in self._names if key in group})
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
        for kind, section in zip(self._kinds, self.sections, strict=True):
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
        for one, state in zip(self._built, saved["schedulers"], strict=True):
            fresh = {k: v for k, v in vars(one).items() if k != "optimizer"}
            known = {k: v for k, v in state.items() if k in fresh}
            vars(one).update(overlay(fresh, known))
        for group, values in zip(self._groups, saved["values"], strict=True):
            for key, value in values.items():
                group[key] = tuple(value) if isinstance(value, list) else value

    def _step_to(self, progress: int, *, by_epoch: bool) -> None:
        chosen = [one for one in self._built if one.by_epoch == by_epoch]
        while late := [one for one in chosen if one._global_step < progress]:
            for one in late:
                # An update was done, on some devices not by `optimizer.step`
                one.optimizer._global_step = one._global_step
                one.step()


def _kind(section: Mapping[str, Any]) -> Any:
    """The class that a section names; only one of MMEngine's schedulers."""
    name = section.get("type")
    scope, _, bare = str(name).partition(".")
    scope, bare = (scope, bare) if bare else ("", scope)
    base: Any = import_module("mmengine.optim")._ParamScheduler
    found = name
    if isinstance(name, str):
        owner = attach(str(section.get("_scope_") or scope or "mmengine"))
        found = owner.find("learning-rate scheduler", bare)
        if found is None:
            raise UnknownNameError(
                f"no scheduler {name!r}; known: "
                f"{', '.join(owner.names('learning-rate scheduler'))}",
                place=where(section, "type"),
            )
    if not (inspect.isclass(found) and issubclass(found, base)):
        raise ConfigError(
            f"{name!r} is no scheduler of MMEngine", place=where(section, "type")
        )
    if "ReduceOnPlateau" in found.__name__:
        raise ConfigError(
            f"{name!r} follows a result: use lr_config: {{policy: ReduceLROnPlateau}}",
            place=where(section, "type"),
        )
    return found
