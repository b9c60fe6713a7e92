"""`LineParser`: argparse whose complaints are one line and name the nearest flag."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable
from typing import Any, NoReturn

from devrun.cli.console import complain
from devrun.errors import nearest
from devrun.python38 import unprefixed

UNKNOWN = "unrecognized arguments: "
_KEYS = {"lr": "optimizer.lr", "epochs": "runner.max_epochs"}
"""Flags of many programs -> the key of a config that says it here."""


class LineParser(argparse.ArgumentParser):
    """Ends with status 2 and one line on stderr; no abbreviated flags."""

    def __init__(self, prog: str, description: str) -> None:
        super().__init__(prog=prog, description=description, allow_abbrev=False)
        self.ends_at: Callable[[str], bool] = lambda word: False
        """Which word is the last; what follows is `rest`, for somebody else."""

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        words = sys.argv[1:] if args is None else list(args)
        end = next((i for i, word in enumerate(words, 1) if self.ends_at(word)), None)
        parsed = super().parse_args(words[:end], namespace)
        parsed.rest = [] if end is None else words[end:]
        return parsed

    def error(self, message: str) -> NoReturn:
        if message.startswith(UNKNOWN):
            message = self._about_unknown(unprefixed(message, UNKNOWN))
        complain(f"{message}; see: {self.prog} --help")
        sys.exit(2)

    def _about_unknown(self, arguments: str) -> str:
        flag = (arguments.split() or [""])[0].split("=")[0]
        if not flag.startswith("-"):
            return f"unexpected argument {flag!r}"
        from devrun.config.schema import sections_with  # a command may do without

        flags = flags_of(self)
        name = flag.lstrip("-").replace("-", "_")
        key = _KEYS.get(name) or next((f"{a}.{name}" for a in sections_with(name)), "")
        if key and "--cfg-options" in flags:
            return f"unknown flag {flag}; did you mean --cfg-options {key}=...?"
        hint = nearest(flag, flags)
        hint = f"; {hint}" if hint.startswith("did you mean") else ""
        return f"unknown flag {flag}{hint}"


def switch(group: argparse._ActionsContainer, flag: str, what: str) -> None:
    """Add a flag that is on where it is given."""
    group.add_argument(flag, action="store_true", help=what)


def index(text: str) -> int:
    """A number of 0 or more, as a flag's `type`."""
    return at_least(0, text)


def positive(text: str) -> int:
    """A number of 1 or more, as a flag's `type`."""
    return at_least(1, text)


def limit(text: str) -> float:
    """A number of 1 or more, or a fraction such as 0.1, as a flag's `type`."""
    fraction = re.fullmatch(r"0?\.\d{1,9}", text)
    if fraction and float(text):
        return float(text)
    return at_least(1, text, hint=", nor a fraction such as 0.1")


def at_least(least: int, text: str, digits: int | None = None, hint: str = "") -> int:
    """`text` as a number of `least` or more, of at most so many digits."""
    too_long = digits is not None and len(text) > digits
    if not text.isdecimal() or too_long or int(text) < least:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a number of {least} or more{hint}"
        )
    return int(text)


def flags_of(parser: argparse.ArgumentParser) -> list[str]:
    """Every option string that `parser` accepts, sorted."""
    return sorted(f for action in parser._actions for f in action.option_strings)
