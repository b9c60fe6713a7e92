"""Imports of other packages for a config, and what to do where one fails."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from typing import Any

from devrun.blame import cause_of
from devrun.checkpoint import CheckpointLoader
from devrun.errors import ConfigError
from devrun.importing import import_for_config


def imported(scope: str, module: str, hints: Iterable[tuple[str, str]]) -> None:
    """Import `module` for `scope`.

    Args:
        hints: pattern of what an import says, and what to do then.

    Raises:
        ConfigError: it fails.
    """
    try:
        import_for_config(module)
    except ConfigError:
        raise
    except Exception as error:
        found = ((re.search(pattern, str(error)), hint) for pattern, hint in hints)
        hint = next((f"; {match.expand(hint)}" for match, hint in found if match), "")
        raise ConfigError(
            f"the scope {scope!r}: importing {module} failed: {cause_of(error)}{hint}"
        ) from error


def read_weights_here(loader: Any) -> None:
    """Have the `CheckpointLoader` of MMCV or MMEngine read local files by devrun's.

    Theirs leaves it to `torch.load`, which since torch 2.6 refuses files of their own
    with numbers of numpy in `meta`.
    """
    loader.register_scheme("", _weights_of, force=True)


def _weights_of(filename: str, map_location: Any = None, logger: Any = None) -> Any:
    path = os.path.expanduser(filename)
    return CheckpointLoader.load_checkpoint(path, map_location or "cpu")
