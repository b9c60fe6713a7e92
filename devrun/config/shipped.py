"""The configs that come with devrun, also where there is no checkout."""

from __future__ import annotations

import os
from pathlib import Path

from devrun.python38 import unprefixed

_FOLDER = Path(__file__).parents[1] / "configs"


def shipped_configs() -> list[str]:
    """Their names, such as `digits/resnet8_digits.yaml`; parts of others are none."""
    names = (path.relative_to(_FOLDER) for path in _FOLDER.glob("*/*.*"))
    return sorted(
        name.as_posix()
        for name in names
        if name.suffix in (".py", ".yaml") and name.parts[0] != "_base_"
    )


def config_path(name: str) -> str:
    """The file `name`, or else the shipped config of that name."""
    shipped = unprefixed(name, "configs/")
    if not os.path.exists(name) and shipped in shipped_configs():
        return str(_FOLDER / shipped)
    return name
