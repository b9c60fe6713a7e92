"""`devrun predict CONFIG CHECKPOINT --out FILE`: what saved weights predict.

No loss is asked for, so the data set needs no labels.
"""

from __future__ import annotations

import argparse

from devrun.cli.console import say
from devrun.cli.exits import Session
from devrun.cli.test import add_shared_arguments, check_out, launches, opened
from devrun.text import LINE, escape


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `devrun predict`."""
    add_shared_arguments(parser)
    rows = "a row for each sample: .csv or .jsonl"
    parser.add_argument("--out", metavar="FILE", required=True, help=rows)


def run(args: argparse.Namespace, session: Session) -> int:
    """One pass over the data set; nothing but the file is written."""
    check_out("--out", args.out, (".csv", ".jsonl"))
    if launches(args, session, True):
        return 0
    with opened(args, every_sample=True, stage="predict") as (runner, hook, _):
        from devrun.cli.predictions import predict, write_predictions

        rows = predict(runner, hook.loaders)
        if runner.rank == 0:
            for path, count in write_predictions(args.out, rows).items():
                say(f"written: {escape(path, LINE)} ({count} rows)")
    return 0
