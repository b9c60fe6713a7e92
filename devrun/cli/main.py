"""`devrun COMMAND ...`: picks the command, runs it, ends with its exit status."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any, NoReturn

import devrun
from devrun.cli.console import complain, say
from devrun.cli.exits import STATUSES, Session, guarded
from devrun.cli.parser import LineParser
from devrun.errors import nearest

COMMANDS = {
    "train": "train what a config describes",
    "test": "evaluate a checkpoint",
    "check": "say what would break, be slow or differ on a device",
    "compare": "find where two trainings part",
    "report": "show what runs did on one page",
    "predict": "write what a checkpoint predicts",
    "devices": "list the devices that are here",
    "export": "write a checkpoint in another format",
    "new": "write a project that trains at once",
    "list": "name what there is: models, hooks, keys, shipped configs",
    "explain": "say what a key or a type is",
    "config": "print a config as it is used, and where each value is from",
    "schema": "print the JSON schema of configs, for editors",
    "launch": "print a job file for a training",
    "emulate": "run a program on the SDKs' emulators",
}
"""The module of each has `add_arguments(parser)` and `run(args, session)`."""


def main(argv: Sequence[str] | None = None, prog: str = "devrun") -> int:
    """Run one command line; the process's exit status.

    Errors are one line on stderr, see `devrun.cli.exits` for their statuses.
    """
    if "_ARGCOMPLETE" in os.environ:  # the shell asks what fits
        from devrun.cli.completion import complete

        complete(COMMANDS)
    words = list(sys.argv[1:] if argv is None else argv)
    if not words or words[0] not in COMMANDS:
        _top_level(prog, words)

    def run(session: Session) -> int:  # the imports too: Ctrl-C may come there
        parser = parser_of(words[0], f"{prog} {words[0]}")
        args = parser.parse_args(words[1:])
        session.parsed = True
        if vars(args).get("mmcv"):  # before anything of the user's is read or imported
            from devrun.interop.mmcv_finder import install

            complain(install().described(), "note")
        return int(_module(words[0]).run(args, session))

    return guarded(run, words)


def parser_of(name: str, prog: str | None = None) -> LineParser:
    """The argument parser of the command `name`."""
    parser = LineParser(prog or f"devrun {name}", COMMANDS[name])
    _module(name).add_arguments(parser)
    return parser


def _module(name: str) -> Any:
    return import_module(f"devrun.cli.{name}")


def _top_level(prog: str, words: list[str]) -> NoReturn:
    """`--help`, `--version` and everything that is not a command."""
    parser = LineParser(prog, "Train on whatever accelerator is named by --device.")
    if not words or words[0] in ("-h", "--help"):
        say(_help(prog))
        sys.exit(0 if words else 2)
    if words[0] == "--version":
        say(f"devrun {devrun.__version__}")
        sys.exit(0)
    if words[0].startswith("-"):
        hint = nearest(words[0], ["--help", "--version"])
        parser.error(f"unknown flag {words[0]}; {hint}")
    parser.error(f"no command {words[0]!r}; {nearest(words[0], COMMANDS)}")


def _help(prog: str) -> str:
    lines = [
        f"usage: {prog} COMMAND [ARGUMENTS]   ({prog} COMMAND --help says more)",
        "",
        *(f"  {name:<10}{summary}" for name, summary in COMMANDS.items()),
        "",
        "exit status:",
        *(f"  {status:<10}{meaning}" for status, meaning in STATUSES.items()),
    ]
    return "\n".join(lines)
