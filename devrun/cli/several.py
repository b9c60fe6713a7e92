"""`--num-devices N` and what goes with it: a command as several processes."""

from __future__ import annotations

import argparse
import os
import re
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

_NODES = re.compile(r"([1-9]\d{0,4})(?::([1-9]\d{0,4}))?")
_ENDPOINT = re.compile(r"(\[[0-9a-fA-F:.%\w]+\]|[\w.-]+):(\d{1,5})")


def add_launch_flags(group: argparse._ArgumentGroup) -> None:
    """What goes with `--num-devices`: restarts, and other machines."""
    add = group.add_argument
    again = "how often a failed process makes all start again, from the newest save"
    add("--max-restarts", type=small, metavar="N", help=again)
    add("--nnodes", type=_nodes, metavar="A[:B]", help="machines: A to B take part")
    add("--rdzv-endpoint", type=_endpoint, metavar="HOST:PORT", help="where they meet")


def to_launch(args: argparse.Namespace) -> bool:
    """Whether this command is to start the processes, and not one of them.

    Raises:
        ConfigError: the flags contradict each other, or what started this process.
    """
    names = ("max_restarts", "nnodes", "rdzv_endpoint")
    given = [name for name in names if vars(args).get(name) is not None]
    if launched_since() is not None or not (given or args.num_devices not in (None, 1)):
        return False
    flag = "--" + (given[0] if given else "num_devices").replace("_", "-")
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
    _, most = vars(args).get("nnodes") or (1, 1)
    if (most > 1) != ("rdzv_endpoint" in given):
        raise ConfigError(
            "several machines need --nnodes A[:B] and --rdzv-endpoint HOST:PORT, the "
            "same on each of them: give both, or neither"
        )
    return True


def takes_more_or_fewer(args: argparse.Namespace) -> bool:
    """Whether machines may leave the run and come back."""
    least, most = args.nnodes or (1, 1)
    return bool(least < most)


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
        # more or fewer machines mean another size of the updates
        args.allow_changes = args.allow_changes or takes_more_or_fewer(args)


def launch_command(
    args: argparse.Namespace, cfg: Any, words: Sequence[str], work_dir: str | None
) -> int:
    """Run the command `words` as the processes that `args` ask for, to their end.

    Args:
        work_dir: of all of them, where the command has one.
    """
    from devrun.parallel.failure import RankError  # torch
    from devrun.parallel.launch import Launch, launch

    flag = vars(args).get  # `test` and `predict` have only --num-devices
    restarts, nodes = flag("max_restarts") or 0, flag("nnodes") or (1, 1)
    how = Launch(_processes(args, cfg), restarts, nodes, flag("rdzv_endpoint"))

    def tell(failure: RankError, number: int) -> None:
        complain(f"{failure}; all start again ({number} of {restarts})", "warning")

    command, *rest = words
    place = [] if work_dir is None else ["--work-dir", work_dir]
    try:
        with TakenDown() as signals:
            launch([command, *place, *rest], how, signals, tell)
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


def _nodes(text: str) -> tuple[int, int]:
    found = _NODES.fullmatch(text)
    least, most = (int(found[1]), int(found[2] or found[1])) if found else (1, 0)
    if least > most:
        raise argparse.ArgumentTypeError(
            f"{text!r} is neither a number of machines nor LEAST:MOST"
        )
    return least, most


def _endpoint(text: str) -> str:
    found = _ENDPOINT.fullmatch(text)
    if found is None or not 0 < int(found[2]) < 2**16:
        raise argparse.ArgumentTypeError(
            f"{text!r} is no HOST:PORT; take a machine that all reach, and a free port "
            "of it, such as node0:29500"
        )
    return text
