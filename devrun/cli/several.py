"""`--num-devices N` and what goes with it: a command as several processes."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

from devrun.cli.console import complain
from devrun.cli.parser import at_least
from devrun.cli.signals import TakenDown
from devrun.errors import ConfigError
from devrun.files import unfollowed
from devrun.launched import launched_since
from devrun.text import escape_lines

if TYPE_CHECKING:
    from devrun.parallel.failure import RankError


def add_launch_flags(group: argparse._ArgumentGroup) -> None:
    """What goes with `--num-devices`."""
    add = group.add_argument
    again = "how often a failed process makes all start again, from the newest save"
    add("--max-restarts", type=small, metavar="N", help=again)


def to_launch(args: argparse.Namespace) -> bool:
    """Whether this command is to start the processes, and not one of them.

    Raises:
        ConfigError: the flags contradict each other, or what started this process.
    """
    again = vars(args).get("max_restarts") is not None
    if launched_since() is not None or not (again or args.num_devices not in (None, 1)):
        return False
    flag = "--max-restarts" if again else "--num-devices"
    if args.launcher not in (None, "none"):
        raise ConfigError(
            f"{flag} and --launcher {args.launcher} clash: one starts the processes, "
            "the other says who has started them; give one of them"
        )
    if "RANK" in os.environ and "WORLD_SIZE" in os.environ:
        raise ConfigError(
            f"{flag} would start processes, and RANK and WORLD_SIZE say that this is "
            "one of several already: leave the flag out, or those variables"
        )
    return True


def go_on(args: argparse.Namespace) -> None:
    """Where a launcher has started this process again: from what was saved since.

    Nothing that the flags say of the start counts then: the run that is in the work_dir
    is this one.
    """
    began = launched_since()
    if began is None:
        return
    from devrun.checkpoint import list_checkpoints

    since = datetime.fromtimestamp(began, timezone.utc).isoformat()
    saved = list_checkpoints(Path(args.work_dir) / "checkpoints")
    if any(each.manifest and each.manifest.created >= since for each in saved):
        args.resume_from, args.overwrite = "auto", False
        args.load_from = args.allow_pickle = None


def launch_command(
    args: argparse.Namespace, cfg: Any, words: Sequence[str], work_dir: str | None
) -> int:
    """Run the command `words` as the processes that `args` ask for, to their end.

    Args:
        work_dir: of all of them, where the command has one.
    """
    from devrun.parallel.failure import RankError  # torch
    from devrun.parallel.launch import launch

    # `test` and `predict` have only --num-devices
    restarts, count = vars(args).get("max_restarts") or 0, _processes(args, cfg)

    def tell(failure: RankError, number: int) -> None:
        complain(f"{failure}; all start again ({number} of {restarts})", "warning")

    command, *rest = words
    place = [] if work_dir is None else ["--work-dir", work_dir]
    try:
        with TakenDown() as signals:
            launch([command, *place, *rest], count, restarts, signals, tell)
    except RankError as error:
        _keep_stacks(error.stacks, work_dir)
        raise
    return 0


def _keep_stacks(stacks: str, work_dir: str | None) -> None:
    """Add the stacks of all processes to the log, which has those of the first."""
    logs = sorted(Path(work_dir).glob("[0-9]*_[0-9]*.log")) if work_dir else []
    if stacks and logs:
        with suppress(OSError), open(logs[-1], "ab", opener=unfollowed) as file:
            file.write(f"{escape_lines(stacks)}\n".encode())


def _processes(args: argparse.Namespace, cfg: Any) -> int:
    """How many were asked for; `auto`: as many as there are devices.

    Raises:
        DeviceUnavailableError: the device is not here at all.
    """
    asked = 1 if args.num_devices is None else args.num_devices
    if asked == 1:
        return 1
    from devrun.devices.device_section import adapter_of

    adapter = adapter_of(cfg)
    return len(adapter.list_devices()) or 1 if asked == "auto" else int(asked)


def small(text: str) -> int:
    """A number of at most five digits, as a flag's `type`."""
    return at_least(0, text, digits=5)


def number_or_auto(text: str) -> int | str:
    if text == "auto":
        return text
    if not text.isdecimal() or not 0 < int(text[:6]) < 10**5:
        raise argparse.ArgumentTypeError(
            f"{text!r} is neither a number of 1 or more nor 'auto'"
        )
    return int(text)
