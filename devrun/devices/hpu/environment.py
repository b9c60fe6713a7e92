"""What the SDK reads from the environment, once, when it is loaded.

A default that changed between releases (lazy mode was on until 1.21) is never relied
on: every variable that decides what runs is set here, and a change that comes too late
is refused.
"""

from __future__ import annotations

import atexit
import functools
import logging
import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path

from devrun.construct import where
from devrun.devices.hpu.options import HPUOptions
from devrun.dist import launched
from devrun.errors import ConfigError, UnsupportedFeatureError, nearest
from devrun.trust import may_run_code

_LISTS = {
    "autocast_lower": "PT_HPU_AUTOCAST_LOWER_PRECISION_OPS_LIST",
    "autocast_fp32": "PT_HPU_AUTOCAST_FP32_OPS_LIST",
}

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
    if options.generation is not None:
        wanted["DEVRUN_HPU_GENERATION"] = options.generation
    if options.memory_mb is not None:
        wanted["DEVRUN_HPU_MEMORY_MB"] = str(options.memory_mb)
    given = options.env or {}
    for name, value in given.items():
        if name in wanted or name in _LISTS.values():
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


@functools.cache
def _reviewed() -> list[str]:
    lines = _REVIEWED.read_text(encoding="utf-8").splitlines()
    return [line for line in lines if not line.startswith("#")]


def apply(options: HPUOptions, *, loaded: bool) -> dict[str, str]:
    """Set what `options` decide; what the SDK will see, or has seen.

    Raises:
        UnsupportedFeatureError: the SDK is `loaded` already, with something else.
    """
    wanted = variables(options)
    listed = {name: getattr(options, name) for name in _LISTS}
    if loaded:
        _refuse_late(wanted, [name for name, ops in listed.items() if ops is not None])
        return wanted
    for name, ops in listed.items():
        if ops is not None:
            wanted[_LISTS[name]] = _file_of(ops)
    _say_replaced(wanted)
    os.environ.update(wanted)
    _set.update(wanted)
    return wanted


def _refuse_late(wanted: Mapping[str, str], lists: Sequence[str]) -> None:
    if lists:
        raise UnsupportedFeatureError(
            f"{', '.join(lists)} of device 'hpu' cannot be changed any more: "
            "habana_frameworks is loaded in this process; start a new one"
        )
    for name, value in wanted.items():
        before = _set.get(name, os.environ.get(name))
        if before != value:
            raise UnsupportedFeatureError(
                f"device 'hpu' needs {name}={value}, but habana_frameworks was loaded "
                f"in this process with {before or 'its default'} and reads it once: "
                f"start a new process, or export {name}={value} before it (and "
                "PT_HPU_AUTOLOAD=0 where torch loads it by itself)"
            )


def _say_replaced(wanted: Mapping[str, str]) -> None:
    for name, value in wanted.items():
        before = os.environ.get(name)
        if before not in (None, value):
            logger.warning("%s=%s of the environment becomes %s", name, before, value)


def _file_of(operators: Sequence[str]) -> str:
    """A file with one name a line, for as long as the process lives."""
    folder = Path(tempfile.mkdtemp(prefix="devrun-hpu-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    path = folder / "operators.txt"
    path.write_text("".join(f"{name}\n" for name in operators), encoding="utf-8")
    return str(path)
