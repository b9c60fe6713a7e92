"""`devrun report WORK_DIR ...`: what runs did, on one page, in a table or as JSON."""

from __future__ import annotations

import argparse
import csv
import io
import json

from devrun.cli.console import say
from devrun.cli.exits import Session
from devrun.cli.parser import switch
from devrun.errors import ConfigError
from devrun.files import disk_errors, replace_text, user_path
from devrun.text import aligned, escape

RATES = ("watts", "price", "energy_price", "tokens")


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
    add("--watts", metavar="W[,W]", help="power of the machine, or of each run's")
    add("--price", metavar="P[,P]", help="of an hour of the machine")
    add("--energy-price", metavar="P[,P]", help="of a kWh")
    add("--tokens", metavar="N[,N]", help="of a sample, for the cost of a million")
    add("--target", metavar="METRIC=VALUE", help="what it took to reach this")


def run(args: argparse.Namespace, session: Session) -> int:
    """Write the page; 0 also where parts of a run could not be read."""
    table = args.table or args.csv
    if (args.sort or args.keys) and not table:
        flag = "--sort" if args.sort else "--keys"
        raise ConfigError(f"{flag} is of the table; add --table or --csv")
    from devrun.rehearsal.report.cost import rates_of, target_of
    from devrun.rehearsal.report.data import comparison, report_data
    from devrun.rehearsal.report.html import page
    from devrun.rehearsal.report.runs import read_run

    given = {key: getattr(args, key) for key in RATES}
    # what a sweep's run says on the screen is beside its folder, where SWEEP/* finds it
    said = {f"{each.rstrip('/')}.txt" for each in args.work_dirs}
    folders = [each for each in args.work_dirs if each not in said]
    rates = rates_of(len(folders), **given)
    target = target_of(args.target)
    runs = [read_run(work_dir) for work_dir in folders]
    if table:
        rows = comparison(
            runs, sort=args.sort, keys=args.keys, rates=rates, target=target
        )
        say(_csv(rows) if args.csv else aligned_rows(rows))
        return 0
    data = report_data(runs, rates=rates, target=target)
    if args.json:
        say(json.dumps(data, allow_nan=False))
        return 0
    output = user_path(args.output)
    with disk_errors(f"cannot write {str(output)!r}", "; choose another place by -o"):
        replace_text(output, page(data))
    say(str(output))
    return 0


def aligned_rows(rows: list[list[str]]) -> str:
    """A table for the terminal."""
    return "\n".join(aligned([[escape(cell) for cell in row] for row in rows]))


def _csv(rows: list[list[str]]) -> str:
    text = io.StringIO(newline="")
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue().rstrip("\n")
