"""`devrun explain KEY|TYPE`: what it is, what it takes, and an example."""

from __future__ import annotations

import argparse

from devrun.cli.catalogue import explained
from devrun.cli.console import say
from devrun.cli.exits import Session
from devrun.cli.flags import add_trust_flags, trusted
from devrun.config.imports import import_named


def add_arguments(parser: argparse.ArgumentParser) -> None:
    what = "optimizer_config.grad_clip, ResNet, torchvision.models.resnet18"
    parser.add_argument("word", metavar="KEY|TYPE", help=what)
    add_trust_flags(parser)


def run(args: argparse.Namespace, session: Session) -> int:
    """Print it; status 2 for a name that nothing has."""
    with trusted(args):
        import_named(args.imports, ".")
        say(explained(args.word))
    return 0
