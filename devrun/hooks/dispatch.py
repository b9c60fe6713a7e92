"""`HookTable`: checks hooks as they are registered, sorts once, calls fast."""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from devrun.errors import ConfigError, ConfigTypeError, UnsupportedFeatureError, nearest
from devrun.hooks.base import (
    GENERIC,
    STAGES,
    Hook,
    Priority,
    get_priority,
    overrides,
)
from devrun.run import Run
from devrun.step import Capability

_CALLABLE = (*STAGES, *GENERIC)
_MISSPELT = 0.8  # similarity from which a method name is a stage written wrongly


class HookTable:
    """Hooks in the order of their priority, and for each stage whom to call.

    The calls of a stage are worked out when a hook is added, so that a stage nobody
    overrides costs nothing in the loop.
    """

    def __init__(self, capabilities: frozenset[Capability], device: str) -> None:
        self._capabilities = capabilities
        self._device = device
        self.hooks: list[Hook] = []
        self.calls: dict[str, tuple[Callable[..., None], ...]] = dict.fromkeys(
            _CALLABLE, ()
        )

    def add(self, hook: Hook, priority: int | str | Priority | None = None) -> None:
        """Insert `hook` behind those of the same priority.

        Raises:
            ConfigTypeError: not a `Hook`.
            ConfigError: registered before, or a misspelt stage.
            UnsupportedFeatureError: the device lacks what the hook requires.
        """
        if not isinstance(hook, Hook):
            raise ConfigTypeError(
                f"a hook must be an instance of devrun.hooks.Hook, got {hook!r}"
            )
        name = type(hook).__name__
        if any(known is hook for known in self.hooks):
            raise ConfigError(f"this {name} is registered already; make a second one")
        _check_stage_names(hook)
        self._check_requirements(hook)
        level = get_priority(hook.priority if priority is None else priority)
        hook.priority = level
        index = len(self.hooks)
        while index and self.hooks[index - 1].priority > level:
            index -= 1
        self.hooks.insert(index, hook)
        self.refresh()

    def prepare_dry_run(self) -> list[Hook]:
        """Take out the hooks that cannot take part in a dry run; they are returned."""
        out = [hook for hook in self.hooks if not hook.prepare_dry_run()]
        self.hooks = [hook for hook in self.hooks if hook not in out]
        self.refresh()
        return out

    def refresh(self) -> None:
        """Work out the calls again, after a hook changed what it takes part in."""
        triggered = [(hook, set(hook.get_triggered_stages())) for hook in self.hooks]
        for stage in STAGES:
            self.calls[stage] = tuple(
                getattr(hook, _method_for(hook, stage))
                for hook, stages in triggered
                if stage in stages
            )
        for generic, covered in GENERIC.items():
            self.calls[generic] = tuple(
                getattr(hook, generic)
                for hook, stages in triggered
                if stages.issuperset(covered) and overrides(hook, generic)
            )

    def call(self, stage: str, *args: Any) -> None:
        """Call every hook of `stage`.

        Raises:
            ConfigError: there is no such stage.
        """
        try:
            calls = self.calls[stage]
        except KeyError:
            raise ConfigError(
                f"no hook stage {stage!r}; {nearest(stage, _CALLABLE)}"
            ) from None
        for call in calls:
            call(*args)

    def tell(self, runner: Run, error: BaseException) -> None:
        """Call `on_exception` of every hook; one that fails is logged.

        `error` is what the user must see, and the hooks behind have files to close.
        """
        for call in self.calls["on_exception"]:
            try:
                call(runner, error)
            except Exception as failure:
                name = getattr(call, "__qualname__", repr(call))
                runner.logger.exception("%s failed: %s", name, failure)

    def rows(self) -> list[str]:
        """One row for each hook: priority, class, and the stages it takes part in."""
        width = max((len(type(hook).__name__) for hook in self.hooks), default=0)
        return [
            f"hook: {_level_name(hook.priority):<12} {type(hook).__name__:<{width}} "
            f"{' '.join(hook.get_triggered_stages()) or 'no stage'}"
            for hook in self.hooks
        ]

    def state_dict(self) -> dict[str, Any]:
        """State of each hook that has some, by class name (`#2` for a second one)."""
        states = {key: hook.state_dict() for key, hook in self._keyed()}
        return {key: state for key, state in states.items() if state}

    def load_state_dict(self, states: dict[str, Any]) -> list[str]:
        """Restore each hook's state; returns the keys that no hook has."""
        left = dict(states)
        for key, hook in self._keyed():
            if key in left:
                hook.load_state_dict(left.pop(key))
        return sorted(left)

    def _keyed(self) -> Iterator[tuple[str, Hook]]:
        seen: Counter[str] = Counter()
        for hook in self.hooks:
            name = type(hook).__name__
            seen[name] += 1
            yield (name if seen[name] == 1 else f"{name}#{seen[name]}"), hook

    def _check_requirements(self, hook: Hook) -> None:
        required = set(hook.requires)
        if "after_backward" in hook.get_triggered_stages():
            required.add(Capability.GRAD_ACCESS)
        for missing in sorted(required - self._capabilities, key=lambda c: c.name):
            raise UnsupportedFeatureError(
                f"{type(hook).__name__} needs what device {self._device!r} cannot do: "
                f"{missing.value}; remove the hook or use another device"
            )


def _method_for(hook: Hook, stage: str) -> str:
    """The method to call: a generic one directly when only that is overridden."""
    if overrides(hook, stage):
        return stage
    for generic, covered in GENERIC.items():
        if stage in covered and overrides(hook, generic):
            return generic
    return stage


def _check_stage_names(hook: Hook) -> None:
    for name in {*dir(type(hook)), *vars(hook)}:
        if name in _CALLABLE or not name.startswith(("before_", "after_", "on_")):
            continue
        if not callable(getattr(hook, name)):
            continue
        if close := difflib.get_close_matches(name, _CALLABLE, n=1, cutoff=_MISSPELT):
            raise ConfigError(
                f"{type(hook).__name__}.{name} is not a stage and would never be "
                f"called; did you mean {close[0]!r}?"
            )


def _level_name(level: int) -> str:
    try:
        return Priority(level).name
    except ValueError:
        return str(level)
