"""`devrun predict CONFIG CHECKPOINT --out FILE`: what saved weights predict.

No loss is asked for, so the data set needs no labels.
"""

from __future__ import annotations

import argparse
from typing import Any

from devrun.cli.console import say
from devrun.cli.exits import Session
from devrun.cli.parser import switch
from devrun.cli.test import add_shared_arguments, check_out, launches, opened
from devrun.errors import ConfigError
from devrun.text import LINE, escape

GENERATION: dict[str, tuple[Any, str]] = {
    "--max-new-tokens": (int, "of each sample"),
    "--prompt-tokens": (int, "of a sample that are its prompt; all by default"),
    "--temperature": (float, "draw tokens; 0, the default, takes the likeliest"),
    "--top-k": (int, "of how many of the likeliest to draw"),
    "--seed": (int, "of what is drawn"),
    "--stop": (int, "token that ends a text"),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `devrun predict`."""
    add_shared_arguments(parser)
    rows = "a row for each sample: .csv or .jsonl"
    add = parser.add_argument
    add("--out", metavar="FILE", required=True, help=rows)
    group = parser.add_argument_group("text of a language model")
    switch(group, "--generate", "continue each sample's tokens")
    for flag, (kind, what) in GENERATION.items():
        group.add_argument(flag, type=kind, metavar="N", help=what)


def run(args: argparse.Namespace, session: Session) -> int:
    """One pass over the data set; nothing but the file is written."""
    check_out("--out", args.out, (".csv", ".jsonl"))
    how = _generation(args)
    if launches(args, session, True):
        return 0
    with opened(args, every_sample=True, stage="predict") as (runner, hook, _):
        from devrun.cli.predictions import generated, predict, write_predictions

        if how is None:
            rows = predict(runner, hook.loaders)
        else:
            rows = generated(runner, hook.loaders, how)
        if runner.rank == 0:
            for path, count in write_predictions(args.out, rows).items():
                say(f"written: {escape(path, LINE)} ({count} rows)")
    return 0


def _generation(args: argparse.Namespace) -> dict[str, Any] | None:
    """The arguments of `Generation` that were given."""
    given = {flag[2:].replace("-", "_") for flag in GENERATION}
    asked = {k: v for k, v in vars(args).items() if k in given and v is not None}
    if not args.generate:
        if asked:
            flag = next(iter(asked)).replace("_", "-")
            raise ConfigError(f"--{flag} is of a text to generate; add --generate")
        return None
    if "max_new_tokens" not in asked:
        raise ConfigError("--generate needs --max-new-tokens N")
    return asked
