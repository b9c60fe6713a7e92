"""Readers of the bridge's environment variables, `get_<variable in lower case>()`."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from habana_frameworks._emulation.settings import SETTINGS, TRUE

DEFAULTS = {
    "PT_HPU_LAZY_MODE": "1" if SETTINGS.lazy else "0",
    "PT_ENABLE_COMM_GROUP_CACHE": "1",
    "PT_ENABLE_INT64_SUPPORT": "1" if SETTINGS.int64_native else "0",
}


def __getattr__(name: str) -> Callable[[], bool | int | str]:
    """The reader of one variable; AttributeError for any other name."""
    if not name.startswith("get_pt_"):
        raise AttributeError(f"bridge_config has get_pt_...(), but no {name}")
    variable = name[len("get_") :].upper()

    def read() -> bool | int | str:
        text = os.environ.get(variable, DEFAULTS.get(variable, "0"))
        if text.lower() in (*TRUE, "0", "false", "no", "off", "n", "f"):
            return text.lower() in TRUE
        return int(text) if text.lstrip("-").isdigit() else text

    return read


@contextmanager
def env_setting(variable: str, value: object) -> Iterator[None]:
    """The variable has this value inside."""
    before = os.environ.get(variable)
    os.environ[variable] = str(value)
    try:
        yield
    finally:
        if before is None:
            del os.environ[variable]
        else:
            os.environ[variable] = before
