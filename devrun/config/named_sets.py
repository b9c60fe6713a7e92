"""Several evaluation sets in one key: `data.val: {name: data set, ...}`."""

from __future__ import annotations

import re
from typing import Any

from devrun.config.origin import describe
from devrun.config.tree import where
from devrun.errors import ConfigError

__all__ = ["named_sets"]

_NAME = re.compile(r"\w[\w.-]{0,99}", re.ASCII)


def named_sets(cfg: Any) -> dict[str, Any]:
    """The data sets of `{name: data set, ...}`, by name; one alone is named "".

    Raises:
        ConfigError: a name that no result can begin with.
    """
    if not (
        isinstance(cfg, dict)
        and cfg
        and "type" not in cfg
        and all(isinstance(part, (dict, list, tuple)) for part in cfg.values())
    ):
        return {"": cfg}
    for name in cfg:
        if not (isinstance(name, str) and _NAME.fullmatch(name)):
            raise ConfigError(
                f"the name of a data set is of letters, digits, '_', '-' and '.', got "
                f"{describe(name)}",
                place=where(cfg, name if isinstance(name, str) else None),
            )
    return dict(cfg)
