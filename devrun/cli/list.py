"""`devrun list [KIND] [PATTERN]`: what a config may name."""

from __future__ import annotations

import argparse
import re
import shutil
import sys

from devrun.cli.catalogue import KINDS, catalogue
from devrun.cli.console import say
from devrun.cli.exits import Session
from devrun.cli.flags import add_import_flag
from devrun.config.imports import import_named
from devrun.errors import ConfigError
from devrun.text import aligned, escape


def add_arguments(parser: argparse.ArgumentParser) -> None:
    of = ", ".join(KINDS)
    parser.add_argument("words", nargs="*", metavar="KIND|PATTERN", help=f"of {of}")
    add_import_flag(parser)


def run(args: argparse.Namespace, session: Session) -> int:
    """Print a line for each; status 2 where there is none."""
    import_named(args.imports, ".")
    words = list(args.words)
    kind = kind_of(words[0]) if words else None
    del words[: kind is not None]
    if len(words) > 1:
        raise ConfigError(f"{words[0]!r} is no kind; there are: {', '.join(KINDS)}")
    found = catalogue(kind, *words)
    if not found:
        raise ConfigError(f"nothing is named like {words[0]!r}; see devrun list")
    rows = [[e.kind, e.source, e.name, escape(e.summary)] for e in found]
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    say("\n".join(line[:width] for line in aligned(rows)))
    return 0


def kind_of(word: str) -> str | None:
    """The kind that `word` names, also when it names one of it: `hook`, `policy`."""
    plurals = (word, f"{word}s", f"{word}es", re.sub("y$", "ies", word))
    return next((kind for kind in plurals if kind in KINDS), None)
