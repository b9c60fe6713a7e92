"""Running a Python configuration as the program it is.

Only on request (`--trust-config`), with a warning each time: such a file can do
anything its reader could do.
"""

from __future__ import annotations

import logging
import os
import traceback
import types
from typing import Any

from devrun.config.limits import Budget
from devrun.config.origin import config_error
from devrun.config.python_reader import names_read, parse
from devrun.config.tree import ConfigDict, place
from devrun.place import Origin
from devrun.text import escape

_CODE = (types.ModuleType, types.FunctionType, types.BuiltinFunctionType)


def run_python(
    text: str, file: str, budget: Budget, markers: list[str]
) -> tuple[ConfigDict, set[str]]:
    """Execute `text`; its variables, with `_base_` and markers, and the names it reads.

    Modules, functions and names with two leading underscores are left out.

    Raises:
        ConfigError: whatever the file raised, with the line it came from.
    """
    logging.getLogger("devrun").warning(
        "running %s as Python code, because this was asked for", escape(file)
    )
    tree = parse(text, file, budget)
    names: dict[str, Any] = {
        "__name__": "__config__",
        "__file__": os.path.abspath(file),
        **{marker: marker for marker in markers},
    }
    try:
        exec(compile(text, file, "exec"), names)  # noqa: S102 - asked for
    except Exception as error:
        lines = [
            frame.lineno or 0
            for frame in traceback.extract_tb(error.__traceback__)
            if frame.filename == file
        ]
        raise config_error(
            f"running it raised {type(error).__name__}: {error}",
            Origin(file, lines[-1] if lines else 0),
        ) from error
    values = ConfigDict()
    for name, value in names.items():
        if not (name.startswith("__") or name in markers or isinstance(value, _CODE)):
            place(values, name, value, Origin(file))
    return values, names_read(tree)
