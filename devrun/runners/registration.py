"""How hooks get into a run: MMCV's `register_*`, which are methods of the runner."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from devrun.construct import where, where_key
from devrun.errors import ConfigError, ConfigTypeError, DevrunError
from devrun.hooks.base import Hook, Priority
from devrun.hooks.schedules.torch_scheduler import build_lr_hook, build_momentum_hook
from devrun.hooks.update import OptimizerHook
from devrun.place import Place
from devrun.registry import HOOKS, build_from_cfg
from devrun.runners.checkpointer import HookConfig, WholeRun
from devrun.step import UpdatePolicy


def register_hook(
    self: WholeRun, hook: Hook, priority: int | str | Priority | None = None
) -> None:
    """Add `hook`; see `HookTable.add` for what is refused.

    Without a `priority` the hook's own is taken, NORMAL for most. The policy of the
    update comes from an `OptimizerHook`.
    """
    updates = isinstance(hook, OptimizerHook)
    if updates and self.session.prepared:
        raise ConfigError(
            "the model is on the device already, with its way to update: register "
            "the optimizer hook before run()"
        )
    if updates and any(isinstance(known, OptimizerHook) for known in self.hooks):
        raise ConfigError(
            "an optimizer hook is registered already, from optimizer_config of the "
            "runner or from a hook: give one that says everything"
        )
    self.table.add(hook, priority)
    if isinstance(hook, OptimizerHook):
        self.session.update_by(hook.policy)


def register_hook_from_cfg(self: WholeRun, hook_cfg: Mapping[str, Any]) -> None:
    """Build a hook from `{type, [priority], ...}` and add it."""
    _add(self, hook_cfg)


def register_lr_hook(self: WholeRun, lr_config: HookConfig) -> None:
    """`lr_config`: `{policy: ..., ...}` or a hook; runs at VERY_HIGH."""
    _add(self, lr_config, Priority.VERY_HIGH, build=build_lr_hook)


def register_momentum_hook(self: WholeRun, momentum_config: HookConfig) -> None:
    """`momentum_config`: `{policy: ..., ...}` or a hook; runs at HIGH."""
    _add(self, momentum_config, Priority.HIGH, build=build_momentum_hook)


def register_optimizer_hook(self: WholeRun, optimizer_config: HookConfig) -> None:
    """`optimizer_config`: arguments of an `OptimizerHook`, or a hook.

    A hook of any other class does the update itself, from `outputs["loss"]`.
    """
    hook = _add(
        self, optimizer_config, Priority.ABOVE_NORMAL, default_type="OptimizerHook"
    )
    if hook is not None and not isinstance(hook, OptimizerHook):
        self.session.update_by(UpdatePolicy(owner="hook"))


def register_checkpoint_hook(self: WholeRun, checkpoint_config: HookConfig) -> None:
    """`checkpoint_config`: arguments of a `CheckpointHook`, or a hook.

    It runs last in its stage, so that the checkpoint holds what evaluation and the
    other hooks of that stage did.
    """
    _add(
        self,
        checkpoint_config,
        Priority.LOWEST,
        default_type="CheckpointHook",
        follow_runner=True,
    )


def register_logger_hooks(self: WholeRun, log_config: Mapping[str, Any] | None) -> None:
    """`log_config`: `{interval, hooks: [...]}`; each logger runs at VERY_LOW."""
    if log_config is None:
        return
    if unknown := set(log_config) - {"interval", "hooks"}:
        raise ConfigError(
            f"log_config does not know {sorted(unknown)}; accepted: interval, hooks",
            place=where(log_config, min(unknown)),
        )
    interval = log_config.get("interval", 10)
    entries = log_config.get("hooks", ())
    for at, entry in enumerate(entries):
        if isinstance(entry, dict):
            entry = copy.copy(entry)  # keeps where it was written
            entry.setdefault("interval", interval)
        place = where(entries, at)
        _add(self, entry, Priority.VERY_LOW, follow_runner=True, place=place)


def register_timer_hook(self: WholeRun, timer_config: HookConfig) -> None:
    """`timer_config`: arguments of an `IterTimerHook`, or a hook; runs at LOW."""
    _add(self, timer_config, Priority.LOW, default_type="IterTimerHook")


def register_profiler_hook(self: WholeRun, profiler_config: HookConfig) -> None:
    """`profiler_config`: arguments of a `ProfilerHook`, or a hook."""
    _add(self, profiler_config, default_type="ProfilerHook")


def register_custom_hooks(
    self: WholeRun, custom_config: HookConfig | Sequence[HookConfig]
) -> None:
    """One hook or config, or a list of them, with an optional `priority` each."""
    several = isinstance(custom_config, (list, tuple))
    entries: Any = custom_config if several else [custom_config]
    for at, entry in enumerate(entries):
        _add(self, entry, place=where(entries, at))


def register_training_hooks(
    self: WholeRun,
    lr_config: HookConfig = None,
    optimizer_config: HookConfig = None,
    checkpoint_config: HookConfig = None,
    log_config: Mapping[str, Any] | None = None,
    momentum_config: HookConfig = None,
    timer_config: Any = None,
    custom_hooks_config: HookConfig | Sequence[HookConfig] = None,
) -> None:
    """The default hooks and `custom_hooks_config`, each at its priority:

    LR VERY_HIGH, momentum HIGH, optimizer ABOVE_NORMAL, custom NORMAL, timer LOW,
    loggers VERY_LOW, checkpoint LOWEST. Pass `timer_config={}` or None for the default
    timer, `False` for none.
    """
    self.register_lr_hook(lr_config)
    self.register_momentum_hook(momentum_config)
    self.register_optimizer_hook(optimizer_config)
    self.register_checkpoint_hook(checkpoint_config)
    if timer_config is not False:
        self.register_timer_hook(timer_config or {})
    self.register_logger_hooks(log_config)
    self.register_custom_hooks(custom_hooks_config)


def _add(
    run: WholeRun,
    config: Any,
    priority: Priority | None = None,
    *,
    build: Callable[[Any], Hook] | None = None,
    default_type: str | None = None,
    follow_runner: bool = False,
    place: Place | None = None,
) -> Hook | None:
    """Add the hook that `config` is, or that is built from it; None adds none.

    Args:
        priority: of a hook without one of its own.
        build: makes the hook; by default its `type` in HOOKS.
        default_type: that of a section which names none.
        follow_runner: let `by_epoch` default to what the run counts.
        place: where `config` was written.
    """
    if config is None:
        return None
    if isinstance(config, Hook):
        run.register_hook(config, _default_priority(config, priority))
        return config
    if not isinstance(config, Mapping):
        raise ConfigTypeError(
            f"a hook is given as a dict or a Hook object, got {config!r}",
            place=place,
        )
    cfg: Any = copy.copy(config)
    asked = cfg.pop("priority", None)
    if default_type is not None and "type" not in cfg:
        cfg["type"] = default_type
    if build is None and "type" not in cfg:
        raise ConfigError(
            f"a hook config needs a 'type', got {dict(cfg)!r}", place=where(config)
        )
    if (follow_runner or build is not None) and not run.state.by_epoch:
        cfg.setdefault("by_epoch", False)
    hook = build(cfg) if build is not None else build_from_cfg(cfg, HOOKS)
    chosen = _default_priority(hook, priority) if asked is None else asked
    try:
        run.register_hook(hook, chosen)
    except DevrunError as error:
        error.locate(where_key(config, error.key))
        raise
    return hook


def _default_priority(hook: Hook, default: Any) -> Any:
    """`default`, unless the class of `hook` sets its own."""
    own = getattr(type(hook), "priority", Hook.priority)  # it may be no Hook at all
    return default if own is Hook.priority else None
