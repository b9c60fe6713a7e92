"""`LineParser`: argparse whose complaints are one line and name the nearest flag."""

from __future__ import annotations

import argparse
import sys
from typing import NoReturn

from devrun.cli.console import complain
from devrun.errors import nearest

UNKNOWN = "unrecognized arguments: "


class LineParser(argparse.ArgumentParser):
    """Ends with status 2 and one line on stderr; no abbreviated flags."""

    def __init__(self, prog: str, description: str) -> None:
        super().__init__(prog=prog, description=description, allow_abbrev=False)

    def error(self, message: str) -> NoReturn:
        if message.startswith(UNKNOWN):
            message = self._about_unknown(message.removeprefix(UNKNOWN))
        complain(f"{message}; see: {self.prog} --help")
        sys.exit(2)

    def _about_unknown(self, arguments: str) -> str:
        flag = (arguments.split() or [""])[0].split("=")[0]
        if not flag.startswith("-"):
            return f"unexpected argument {flag!r}"
        hint = nearest(flag, flags_of(self))
        hint = f"; {hint}" if hint.startswith("did you mean") else ""
        return f"unknown flag {flag}{hint}"


def flags_of(parser: argparse.ArgumentParser) -> list[str]:
    """Every option string that `parser` accepts, sorted."""
    return sorted(f for action in parser._actions for f in action.option_strings)
