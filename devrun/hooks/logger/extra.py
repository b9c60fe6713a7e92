"""Packages that only one logger needs, imported when it is made."""

from __future__ import annotations

import importlib
from typing import Any

from devrun.errors import ConfigError
from devrun.text import joined


def import_extra(module: str, user: str, extra: str) -> Any:
    """The module `module`, which the class `user` needs.

    Raises:
        ConfigError: it is not installed (with the command that does it), or broken.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        missing = error.name or module
        raise ConfigError(
            f"{user} needs the package {missing.partition('.')[0]}: "
            f"pip install 'devrun[{extra}]'"
        ) from error
    except ImportError as error:
        cause = joined(error)
        raise ConfigError(f"{user} cannot import {module}: {cause}") from error
