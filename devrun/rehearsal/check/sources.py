"""Lines of the user's classes, found in their source."""

from __future__ import annotations

import inspect
import linecache


def assigned(kind: type, name: str) -> tuple[str | None, str]:
    """`file:line` and text of the assignment of `self.name` in the class."""
    kinds = ("buffer", "parameter")
    begins = (
        *(f"self.{name} =", f"self.{name}:"),
        *(
            f"self.register_{kind}({quote}{name}{quote}"
            for kind in kinds
            for quote in "'\""
        ),
    )
    for owner in kind.__mro__:
        try:
            lines, start = inspect.getsourcelines(owner)
            file = inspect.getfile(owner)
        except (OSError, TypeError):
            continue
        for offset, line in enumerate(lines):
            if line.strip().startswith(begins):
                number = max(start, 1) + offset
                return f"{file}:{number}", linecache.getline(file, number).strip()
    return None, ""
