"""Imports of other packages for a config, and what to do where one fails."""

from __future__ import annotations

import re
from collections.abc import Iterable

from devrun.blame import cause_of
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
