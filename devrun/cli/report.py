"""`devrun report WORK_DIR ...`: what runs did, on one page or as JSON."""

from __future__ import annotations

import argparse
import json
from typing import Any

from devrun.cli.console import say
from devrun.cli.exits import Session
from devrun.errors import ConfigError
from devrun.files import disk_errors, replace_text, user_path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "work_dirs", nargs="+", metavar="WORK_DIR", help="the folder of a run"
    )
    parser.add_argument(
        "-o", "--output", default="report.html", help="the page (report.html)"
    )
    parser.add_argument(
        "--json", action="store_true", help="print the data, write no page"
    )
    parser.add_argument(
        "--watts", type=float, metavar="W", help="power of the machine, for energy"
    )
    parser.add_argument(
        "--price-per-hour", type=float, metavar="P", help="price of the machine"
    )


def run(args: argparse.Namespace, session: Session) -> int:
    """Write the page; 0 also where parts of a run could not be read."""
    for flag in ("watts", "price_per_hour"):
        value = getattr(args, flag)
        if value is not None and not 0 <= value < float("inf"):
            name = flag.replace("_", "-")
            raise ConfigError(f"--{name} must be a number from 0 on, got {value}")
    data = _data(args)
    if args.json:
        say(json.dumps(data, allow_nan=False))
        return 0
    from devrun.rehearsal.report import page

    output = user_path(args.output)
    with disk_errors(f"cannot write {str(output)!r}", "; choose another place by -o"):
        replace_text(output, page(data))
    say(str(output))
    return 0


def _data(args: argparse.Namespace) -> dict[str, Any]:
    from devrun.rehearsal.recorded import read_run
    from devrun.rehearsal.report import report_data

    return report_data(
        [read_run(work_dir) for work_dir in args.work_dirs],
        watts=args.watts,
        price_per_hour=args.price_per_hour,
    )
