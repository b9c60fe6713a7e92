"""`devrun schema`: the JSON schema of configs."""

from __future__ import annotations

import argparse
import json

from devrun.cli.console import say
from devrun.cli.exits import Session
from devrun.config.described import json_schema


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """It takes none."""


def run(args: argparse.Namespace, session: Session) -> int:
    """Print it."""
    say(json.dumps(json_schema(), indent=2))
    return 0
