"""`devrun report WORK_DIR ...`: what runs did, on one page, in a table or as JSON."""

from __future__ import annotations

import argparse
import csv
import io
import json
import math
from contextlib import suppress
from typing import Any

from devrun.cli.console import say
from devrun.cli.exits import Session
from devrun.cli.parser import switch
from devrun.errors import ConfigError
from devrun.files import disk_errors, replace_text, user_path
from devrun.text import aligned, escape

RATES = ("watts", "price")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("work_dirs", nargs="+", metavar="WORK_DIR", help="the folder of a run")
    add("-o", "--output", default="report.html", help="the page (report.html)")
    switch(parser, "--json", "print the data, write no page")
    switch(parser, "--table", "print a row for each run, write no page")
    switch(parser, "--csv", "the same for a spreadsheet")
    add("--sort", metavar="COLUMN", help="of the table: the best run first")
    add(
        "--keys", nargs="+", default=[], metavar="KEY", help="of the config, as columns"
    )
    add("--watts", type=_rates, metavar="W[,W]", help="power of the machines")
    add("--price", type=_rates, metavar="P[,P]", help="of an hour of the machine")
    add(
        "--target",
        type=_target,
        metavar="METRIC=VALUE",
        help="what it took to reach this",
    )


def run(args: argparse.Namespace, session: Session) -> int:
    """Write the page; 0 also where parts of a run could not be read."""
    table = args.table or args.csv
    if (args.sort or args.keys) and not table:
        flag = "--sort" if args.sort else "--keys"
        raise ConfigError(f"{flag} is of the table; add --table or --csv")
    from devrun.rehearsal.report.cost import rates_of
    from devrun.rehearsal.report.data import comparison, report_data
    from devrun.rehearsal.report.html import page
    from devrun.rehearsal.report.runs import read_run

    # what a sweep's run says on the screen is beside its folder, where SWEEP/* finds it
    said = {f"{each.rstrip('/')}.txt" for each in args.work_dirs}
    folders = [each for each in args.work_dirs if each not in said]
    rates = rates_of(len(folders), **{key: getattr(args, key) for key in RATES})
    how: dict[str, Any] = {"rates": rates, "target": args.target}
    runs = [read_run(work_dir) for work_dir in folders]
    if table:
        rows = comparison(runs, sort=args.sort, keys=args.keys, **how)
        say(_csv(rows) if args.csv else aligned_rows(rows))
        return 0
    data = report_data(runs, **how)
    if args.json:
        say(json.dumps(data, allow_nan=False))
        return 0
    output = user_path(args.output)
    with disk_errors(f"cannot write {str(output)!r}", "; choose another place by -o"):
        replace_text(output, page(data))
    say(str(output))
    return 0


def _rates(text: str) -> list[float]:
    with suppress(ValueError):
        values = [float(word) for word in text.split(",")]
        if all(0 <= value < math.inf for value in values):
            return values
    raise argparse.ArgumentTypeError(
        f"{text!r} is not a number of 0 or more, nor one a run such as 400,650"
    )


def _target(text: str) -> tuple[str, float]:
    name, _, value = text.partition("=")
    with suppress(ValueError):
        return name, float(value)
    raise argparse.ArgumentTypeError(f"{text!r} is not such as accuracy=0.9")


def aligned_rows(rows: list[list[str]]) -> str:
    """A table for the terminal."""
    return "\n".join(aligned([[escape(cell) for cell in row] for row in rows]))


def _csv(rows: list[list[str]]) -> str:
    text = io.StringIO(newline="")
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue().rstrip("\n")
