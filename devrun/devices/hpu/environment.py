"""What the SDK reads from the environment, once, when it is loaded.

A default that changed between releases (lazy mode was on until 1.21) is never relied
on: every variable that decides what runs is set here, and a change that comes too late
is refused.
"""

from __future__ import annotations

import functools
import logging
import os
from fnmatch import fnmatchcase
from pathlib import Path

from devrun.construct import where
from devrun.devices.hpu.options import HPUOptions
from devrun.dist import launched
from devrun.errors import ConfigError, UnsupportedFeatureError, nearest
from devrun.trust import may_run_code

_REVIEWED = Path(__file__).with_name("data") / "variables.txt"
"""The variables that a config may set, one a line; `*` stands for the end of a name."""

_set: dict[str, str] = {}
"""What was set for the SDK of this process."""

logger = logging.getLogger("devrun")


def variables(options: HPUOptions) -> dict[str, str]:
    """Name -> value of every variable that `options` decides.

    Raises:
        ConfigError: `env` sets one that an option of its own decides.
    """
    lazy = options.mode == "lazy"
    wanted = {
        "PT_HPU_LAZY_MODE": "1" if lazy else "0",
        # the releases' own defaults, written down
        "PT_ENABLE_INT64_SUPPORT": "0" if lazy else "1",
        # without it negative indices give wrong numbers, not an error
        "PT_HPU_ENABLE_NEGATIVE_INDEXING": "1",
    }
    if lazy and options.graphs and launched():
        wanted["PT_HPU_ENABLE_LAZY_COLLECTIVES"] = "1"
    given = options.env or {}
    for name, value in given.items():
        if name in wanted:
            raise ConfigError(
                f"env of device 'hpu' sets {name}, which another option decides: "
                "remove it there",
                place=where(given, name),
            )
        wanted[name] = str(int(value)) if isinstance(value, bool) else str(value)
        if not (may_run_code() or _is_setting(name, wanted[name])):
            raise ConfigError(
                f"env of device 'hpu' sets {name}={wanted[name]}, but from a config it "
                f"takes the reviewed switches of the SDK that name no file; "
                f"{nearest(name, _reviewed())}; export it in the shell, or give "
                "--trust-config",
                place=where(given, name),
            )
    return wanted


def _is_setting(name: str, value: str) -> bool:
    """Not what makes this process, or one that it starts, load or write a file."""
    known = any(fnmatchcase(name, each) for each in _reviewed())
    return known and "/" not in value


@functools.lru_cache(maxsize=None)
def _reviewed() -> list[str]:
    lines = _REVIEWED.read_text(encoding="utf-8").splitlines()
    return [line for line in lines if not line.startswith("#")]


def apply(options: HPUOptions, *, loaded: bool) -> dict[str, str]:
    """Set what `options` decide; what the SDK will see, or has seen.

    Raises:
        UnsupportedFeatureError: the SDK is `loaded` already, with something else.
    """
    wanted = variables(options)
    for name, value in wanted.items():
        before = os.environ.get(name)
        if loaded and _set.get(name, before) != value:
            raise UnsupportedFeatureError(
                f"device 'hpu' needs {name}={value}, but habana_frameworks was loaded "
                f"in this process with {_set.get(name, before) or 'its default'} and "
                f"reads it once: start a new process, or export {name}={value} before "
                "it (and PT_HPU_AUTOLOAD=0 where torch loads it by itself)"
            )
        if before not in (None, value):
            logger.warning("%s=%s of the environment becomes %s", name, before, value)
    if not loaded:
        os.environ.update(wanted)
        _set.update(wanted)
    return wanted
