"""Lines of the user's classes and modules, found in their source."""

from __future__ import annotations

import inspect
import linecache
import re
from types import ModuleType

from devrun.probes.sites import user_line


def assigned(owner: type | ModuleType, name: str) -> tuple[str | None, str]:
    """`file:line` and text of the assignment of `self.name`, or of `name` itself.

    None where it is in no code of the user's or of a library of models.

    Args:
        owner: the class, or the module, that it is an attribute of.
    """
    is_module = isinstance(owner, ModuleType)
    start, word = r"" if is_module else r"\s*(self\.)?", re.escape(name)
    registers = rf"\s*self\.register_\w+\([\"']{word}[\"']"
    wanted = re.compile(rf"{start}{word}\s*(:|=[^=])|{registers}")
    for one in (owner,) if is_module else owner.__mro__:
        try:
            lines, first = inspect.getsourcelines(one)
            file = str(inspect.getfile(one))
        except (OSError, TypeError):
            continue
        for number, line in enumerate(lines, max(first, 1)):
            if wanted.match(line) and user_line([(file, number)]):
                return f"{file}:{number}", linecache.getline(file, number).strip()
    return None, ""
