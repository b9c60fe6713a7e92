"""Several evaluation sets in one key: `data.val: {name: data set, ...}`."""

from __future__ import annotations

import re
from typing import Any

from devrun.config.origin import describe
from devrun.config.tree import where
from devrun.errors import ConfigError

_NAME = re.compile(r"\w[\w.-]{0,99}", re.ASCII)


def named_sets(cfg: Any) -> dict[str, Any]:
    """The data sets of `{name: data set, ...}`, by name; one alone is named "".

    Raises:
        ConfigError: a name that no result can begin with, or one beside data sets whose
            value is none.
    """
    if not isinstance(cfg, dict) or "type" in cfg:
        return {"": cfg}
    if not any(isinstance(part, (dict, list, tuple)) for part in cfg.values()):
        return {"": cfg}
    for name, part in cfg.items():
        if not (isinstance(name, str) and _NAME.fullmatch(name)):
            raise ConfigError(
                f"the name of a data set is of letters, digits, '_', '-' and '.', got "
                f"{describe(name)}",
                place=where(cfg, name if isinstance(name, str) else None),
            )
        if not isinstance(part, (dict, list, tuple)):
            raise ConfigError(
                f"an evaluation set is a section with a 'type', got {describe(part)}; "
                "a single data set has its 'type' beside its other keys",
                place=where(cfg, name),
            )
    return dict(cfg)
