"""`devrun emulate`: run a program with devrun's emulators as its vendor SDKs."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from devrun.cli.console import complain
from devrun.cli.exits import Session
from devrun.errors import ConfigError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = f"{parser.prog} [-h] [-m MODULE | SCRIPT] [ARGUMENTS]"
    rest = argparse.REMAINDER  # flags after the program are the program's
    parser.add_argument(
        "-m", dest="module", metavar="MODULE", nargs=rest, help="run a module"
    )
    parser.add_argument("script", metavar="SCRIPT", nargs=rest, help="run a file")


def run(args: argparse.Namespace, session: Session) -> int:
    """Become the Python process of the program, whose exit status is the result.

    An SDK that is installed is shadowed: emulation was asked for by name.

    Raises:
        ConfigError: nothing to run, or no such file.
    """
    from devrun.devices.emulation import EMULATED_PACKAGES, use_emulators

    words = [*(["-m"] if args.module else []), *(args.module or []), *args.script]
    if not words:
        raise ConfigError(
            "nothing to run; give a script, or -m and a module: "
            "devrun emulate train.py --epochs 2"
        )
    if not args.module and not Path(words[0]).exists():
        raise ConfigError(f"no file {words[0]!r}; give the path of a Python script")
    use_emulators()
    complain(
        f"{', '.join(EMULATED_PACKAGES)} are emulated on the CPU: "
        "what they compute and refuse is meant, how fast is not",
        "note",
    )
    sys.stdout.flush()
    # A fresh interpreter, so that nothing of this one shows in the program's modules,
    # tracebacks, signals or child processes.
    os.execve(sys.executable, [sys.executable, *words], dict(os.environ))
