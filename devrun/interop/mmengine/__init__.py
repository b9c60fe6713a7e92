"""MMEngine and its libraries: their configs, registries, models and evaluation."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from devrun.interop.mmengine.scope import EngineScope

__all__ = ["attach"]


def attach(name: str) -> EngineScope:
    """The scope of the package `name`, imported and made safe for configs.

    Raises:
        ConfigError: importing it fails.
    """
    from devrun.interop.mmengine.scope import attach

    return attach(name)
