"""`devrun convert CONFIG`: an MMEngine-style config as one of devrun's."""

from __future__ import annotations

import argparse

from devrun.cli.console import say
from devrun.cli.exits import Session
from devrun.cli.flags import read_config
from devrun.cli.parser import switch
from devrun.config import DictAction, check_config
from devrun.config.loader import extension


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("config", metavar="CONFIG", help="a config with the sections of MMEngine")
    add("-o", "--out", metavar="FILE", help="a .py, .yaml or .json (or printed as .py)")
    add("--cfg-options", nargs="+", action=DictAction, metavar="KEY=VALUE")
    switch(parser, "--trust-config", "run a .py as Python")


def run(args: argparse.Namespace, session: Session) -> int:
    """Write what `devrun train` would make of the config."""
    if args.out is not None:
        extension(args.out)
    cfg = read_config(args)
    check_config(cfg)
    if args.out is None:
        say(cfg.pretty_text.rstrip("\n"))
    else:
        cfg.dump(args.out)
        say(f"wrote {args.out}")
    return 0
