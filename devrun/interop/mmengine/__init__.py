"""MMEngine and its libraries: their configs, registries, models and evaluation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from devrun.hooks.base import Hook
    from devrun.interop.mmengine.scope import EngineScope

__all__ = ["attach", "hooks_of", "init_weights"]


def attach(name: str) -> EngineScope:
    """The scope of the package `name`, imported.

    Raises:
        ConfigError: importing it fails.
    """
    from devrun.interop.mmengine.scope import attach

    return attach(name)


def init_weights(model: Any) -> None:
    """Give `model` the first weights that its own rules say."""
    model.init_weights()


def hooks_of(model: Any) -> list[Hook]:
    """What tells MMEngine's message hub how far the run is: some models ask it."""
    from devrun.interop.mmengine.own_hooks import RuntimeInfoHook

    return [RuntimeInfoHook()]
