"""`devrun report WORK_DIR ...`: what runs did, on one page or as JSON."""

from __future__ import annotations

import argparse
import json

from devrun.cli.console import say
from devrun.cli.exits import Session
from devrun.cli.parser import switch
from devrun.errors import ConfigError
from devrun.files import disk_errors, replace_text, user_path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("work_dirs", nargs="+", metavar="WORK_DIR", help="the folder of a run")
    add("-o", "--output", default="report.html", help="the page (report.html)")
    switch(parser, "--json", "print the data, write no page")
    add("--watts", type=float, metavar="W", help="power of the machine, for energy")
    add("--price-per-hour", type=float, metavar="P", help="price of the machine")


def run(args: argparse.Namespace, session: Session) -> int:
    """Write the page; 0 also where parts of a run could not be read."""
    for flag in ("watts", "price_per_hour"):
        value = getattr(args, flag)
        if value is not None and not 0 <= value < float("inf"):
            name = flag.replace("_", "-")
            raise ConfigError(f"--{name} must be a number from 0 on, got {value}")
    from devrun.rehearsal.recorded import read_run
    from devrun.rehearsal.report import page, report_data

    runs = [read_run(work_dir) for work_dir in args.work_dirs]
    data = report_data(runs, watts=args.watts, price_per_hour=args.price_per_hour)
    if args.json:
        say(json.dumps(data, allow_nan=False))
        return 0
    output = user_path(args.output)
    with disk_errors(f"cannot write {str(output)!r}", "; choose another place by -o"):
        replace_text(output, page(data))
    say(str(output))
    return 0
