"""`HookRegistration`: MMCV's `register_*` methods, over one `HookTable`."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from devrun.construct import locate, where, where_named
from devrun.errors import ConfigError, ConfigTypeError, DevrunError
from devrun.hooks.base import Hook, Priority
from devrun.hooks.dispatch import HookTable
from devrun.hooks.lr.build import build_lr_hook, build_momentum_hook
from devrun.hooks.update import OptimizerHook
from devrun.registry import HOOKS, build_from_cfg
from devrun.step import UpdatePolicy

__all__ = ["HookRegistration"]

HookConfig = Mapping[str, Any] | Hook | None


class HookRegistration:
    """Registers hooks from objects and from config sections, which stay unchanged."""

    _table: HookTable
    _by_epoch = True
    """What `by_epoch` defaults to in the config sections of this runner."""
    policy: UpdatePolicy
    logger: logging.Logger
    _prepared = False
    adapter_stepped = False
    """Set by each training step of the adapter, cleared by who looks at it."""

    @property
    def _own_loop(self) -> bool:
        return False

    @property
    def counts_epochs(self) -> bool:
        """Whether intervals count epochs unless they say otherwise."""
        return self._by_epoch

    @property
    def hooks(self) -> list[Hook]:
        """All hooks in the order they are called."""
        return self._table.hooks

    def call_hook(self, fn_name: str) -> None:
        """Call the stage `fn_name` of every hook that has it."""
        self._table.call(fn_name, self)

    def get_hook_info(self) -> str:
        """The stage table as text."""
        return self._table.describe()

    def register_hook(
        self, hook: Hook, priority: int | str | Priority | None = None
    ) -> None:
        """Add `hook`; see `HookTable.add` for what is refused.

        Without a `priority` the hook's own is taken, NORMAL for most.
        """
        if isinstance(hook, OptimizerHook):
            self._check_update_is_open()
            hook.own_loop = self._own_loop
        self._table.add(hook, priority)
        if isinstance(hook, OptimizerHook):
            self.policy = hook.policy

    def register_hook_from_cfg(self, hook_cfg: Mapping[str, Any]) -> None:
        """Build a hook from `{type, [priority], ...}` and add it."""
        cfg = copy.copy(hook_cfg) if isinstance(hook_cfg, Mapping) else hook_cfg
        priority = cfg.pop("priority", None)  # type: ignore[attr-defined]
        self.register_hook(build_from_cfg(cfg, HOOKS), priority)

    def register_lr_hook(self, lr_config: HookConfig) -> None:
        """`lr_config`: `{policy: ..., ...}` or a hook; runs at VERY_HIGH."""
        self._register(lr_config, Priority.VERY_HIGH, build=build_lr_hook)

    def register_momentum_hook(self, momentum_config: HookConfig) -> None:
        """`momentum_config`: `{policy: ..., ...}` or a hook; runs at HIGH."""
        self._register(momentum_config, Priority.HIGH, build=build_momentum_hook)

    def register_optimizer_hook(self, optimizer_config: HookConfig) -> None:
        """`optimizer_config`: arguments of an `OptimizerHook`, or a hook.

        A hook of any other class does the update itself, from `outputs["loss"]`.
        """
        hook = self._register(
            optimizer_config, Priority.ABOVE_NORMAL, default_type="OptimizerHook"
        )
        if hook is not None and not isinstance(hook, OptimizerHook):
            self.policy = UpdatePolicy(owner="hook")

    def register_checkpoint_hook(self, checkpoint_config: HookConfig) -> None:
        """`checkpoint_config`: arguments of a `CheckpointHook`, or a hook.

        It runs last in its stage, so that the checkpoint holds what evaluation and
        the other hooks of that stage did.
        """
        self._register(
            checkpoint_config,
            Priority.LOWEST,
            default_type="CheckpointHook",
            follow_runner=True,
        )

    def register_logger_hooks(self, log_config: Mapping[str, Any] | None) -> None:
        """`log_config`: `{interval, hooks: [...]}`; each logger runs at VERY_LOW."""
        if log_config is None:
            return
        if unknown := set(log_config) - {"interval", "hooks"}:
            raise ConfigError(
                f"log_config does not know {sorted(unknown)}; accepted: interval, hooks"
            )
        interval = log_config.get("interval", 10)
        for entry in log_config.get("hooks", ()):
            if isinstance(entry, dict):
                entry = copy.copy(entry)  # keeps where it was written
                entry.setdefault("interval", interval)
            self._register(entry, Priority.VERY_LOW, follow_runner=True)

    def register_timer_hook(self, timer_config: HookConfig) -> None:
        """`timer_config`: arguments of an `IterTimerHook`, or a hook; runs at LOW."""
        self._register(timer_config, Priority.LOW, default_type="IterTimerHook")

    def register_profiler_hook(self, profiler_config: HookConfig) -> None:
        """`profiler_config`: arguments of a `ProfilerHook`, or a hook."""
        self._register(profiler_config, None, default_type="ProfilerHook")

    def register_custom_hooks(
        self, custom_config: HookConfig | Sequence[HookConfig]
    ) -> None:
        """One hook or config, or a list of them, with an optional `priority` each."""
        entries = (
            custom_config
            if isinstance(custom_config, (list, tuple))
            else [custom_config]
        )
        for entry in entries:
            self._register(entry, None)

    def register_training_hooks(
        self,
        lr_config: HookConfig,
        optimizer_config: HookConfig = None,
        checkpoint_config: HookConfig = None,
        log_config: Mapping[str, Any] | None = None,
        momentum_config: HookConfig = None,
        timer_config: HookConfig = None,
        custom_hooks_config: HookConfig | Sequence[HookConfig] = None,
    ) -> None:
        """The default hooks and `custom_hooks_config`, each at its priority:

        LR VERY_HIGH, momentum HIGH, optimizer ABOVE_NORMAL, custom NORMAL, timer LOW,
        loggers VERY_LOW, checkpoint LOWEST. Pass `timer_config={}` or None for the
        default timer, `False` for none.
        """
        self.register_lr_hook(lr_config)
        self.register_momentum_hook(momentum_config)
        self.register_optimizer_hook(optimizer_config)
        self.register_checkpoint_hook(checkpoint_config)
        if timer_config is not False:
            self.register_timer_hook(timer_config or {})
        self.register_logger_hooks(log_config)
        self.register_custom_hooks(custom_hooks_config)

    def prepare_dry_run(self) -> None:
        """Keep all hooks, which are built, from leaving anything behind."""
        for hook in self._table.prepare_dry_run():
            self.logger.info("%s takes no part in a dry run", type(hook).__name__)

    def _check_update_is_open(self) -> None:
        if self._prepared:
            raise ConfigError(
                "the model is on the device already, with its way to update: register "
                "the optimizer hook before run()"
            )
        if any(isinstance(known, OptimizerHook) for known in self.hooks):
            raise ConfigError(
                "an optimizer hook is registered already, from optimizer_config of the "
                "runner or from a hook: give one that says everything"
            )

    def _register(
        self,
        config: Any,
        priority: Priority | None,
        *,
        build: Callable[[Any], Hook] | None = None,
        default_type: str | None = None,
        follow_runner: bool = False,
    ) -> Hook | None:
        if config is None:
            return None
        if isinstance(config, Hook):
            self.register_hook(config, _default_priority(config, priority))
            return config
        if not isinstance(config, Mapping):
            raise ConfigTypeError(
                f"a hook is given as a dict or a Hook object, got {config!r}"
            )
        cfg: Any = copy.copy(config)
        asked = cfg.pop("priority", None)
        if default_type is not None and "type" not in cfg:
            cfg["type"] = default_type
        if build is None and "type" not in cfg:
            raise ConfigError(
                f"{where(config)}a hook config needs a 'type', got {dict(cfg)!r}"
            )
        if (follow_runner or build is not None) and not self._by_epoch:
            cfg.setdefault("by_epoch", False)
        hook = build(cfg) if build is not None else build_from_cfg(cfg, HOOKS)
        chosen = _default_priority(hook, priority) if asked is None else asked
        try:
            self.register_hook(hook, chosen)
        except DevrunError as error:
            locate(error, where_named(config, str(error)))
            raise
        return hook


def _default_priority(hook: Hook, default: Any) -> Any:
    """`default`, unless the class of `hook` says itself where it belongs."""
    own = getattr(type(hook), "priority", Hook.priority)  # it may be no Hook at all
    return default if own is Hook.priority else None
