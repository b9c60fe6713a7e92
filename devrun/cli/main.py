"""`devrun COMMAND ...`: picks the command, runs it, ends with its exit status."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from typing import NamedTuple, NoReturn, Protocol, cast

import devrun
from devrun.cli.console import complain, say
from devrun.cli.exits import STATUSES, Session, guarded
from devrun.cli.parser import LineParser
from devrun.errors import nearest


class Command(NamedTuple):
    """The module of a command and its line in `--help`."""

    module: str
    summary: str


class CommandModule(Protocol):
    """What a module in COMMANDS has."""

    def add_arguments(self, parser: LineParser) -> None: ...

    def run(self, args: object, session: Session) -> int: ...


COMMANDS = {
    "train": Command("devrun.cli.train", "train what a config describes"),
    "test": Command("devrun.cli.test", "evaluate a checkpoint"),
    "check": Command(
        "devrun.cli.check", "say what would break, be slow or differ on a device"
    ),
    "compare": Command("devrun.cli.compare", "find where two trainings part"),
    "report": Command("devrun.cli.report", "show what runs did on one page"),
    "predict": Command("devrun.cli.predict", "write what a checkpoint predicts"),
    "devices": Command("devrun.cli.devices", "list the devices that are here"),
    "export": Command("devrun.cli.export", "write a checkpoint in another format"),
    "convert": Command(
        "devrun.cli.convert", "write an MMEngine-style config as one of devrun's"
    ),
    "launch": Command("devrun.cli.launch", "print a job file for a training"),
    "emulate": Command("devrun.cli.emulate", "run a program on the SDKs' emulators"),
}


def main(argv: Sequence[str] | None = None, prog: str = "devrun") -> int:
    """Run one command line; the process's exit status.

    Errors are one line on stderr, see `devrun.cli.exits` for their statuses.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    if not words or words[0] not in COMMANDS:
        _top_level(prog, words)

    def run(session: Session) -> int:  # the imports too: Ctrl-C may come there
        parser = parser_of(words[0], f"{prog} {words[0]}")
        command = cast(CommandModule, import_module(COMMANDS[words[0]].module))
        args = parser.parse_args(words[1:])
        session.parsed = True
        if vars(args).get("mmcv"):  # before anything of the user's is read or imported
            from devrun.interop.mmcv_finder import install

            complain(install().described(), "note")
        return command.run(args, session)

    return guarded(run, words)


def parser_of(name: str, prog: str | None = None) -> LineParser:
    """The argument parser of the command `name`."""
    entry = COMMANDS[name]
    parser = LineParser(prog or f"devrun {name}", entry.summary)
    cast(CommandModule, import_module(entry.module)).add_arguments(parser)
    return parser


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
        *(f"  {name:<10}{entry.summary}" for name, entry in COMMANDS.items()),
        "",
        "exit status:",
        *(f"  {status:<10}{meaning}" for status, meaning in STATUSES.items()),
    ]
    return "\n".join(lines)
