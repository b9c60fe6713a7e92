"""`--num-devices N`: a command as several processes."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from devrun.cli.signals import TakenDown
from devrun.errors import ConfigError
from devrun.files import unfollowed
from devrun.launched import has_launcher
from devrun.text import escape_lines


def to_launch(args: argparse.Namespace) -> bool:
    """Whether this command is to start the processes, and not one of them.

    Raises:
        ConfigError: the flags contradict each other, or what started this process.
    """
    if has_launcher() or args.num_devices in (None, 1):
        return False
    if args.launcher not in (None, "none"):
        raise ConfigError(
            f"--num-devices and --launcher {args.launcher} clash: one starts the "
            "processes, the other says who has started them; give one of them"
        )
    if "RANK" in os.environ and "WORLD_SIZE" in os.environ:
        raise ConfigError(
            "--num-devices would start processes, and RANK and WORLD_SIZE say that "
            "this is one of several already: leave the flag out, or those variables"
        )
    return True


def launch_command(
    args: argparse.Namespace, cfg: Any, words: Sequence[str], work_dir: str | None
) -> int:
    """Run the command `words` as the processes that `args` ask for, to their end.

    Args:
        work_dir: of all of them, where the command has one.
    """
    command, *rest = words
    place = [] if work_dir is None else ["--work-dir", work_dir]
    with TakenDown() as signals:  # before torch, whose import loses some
        from devrun.parallel.failure import RankError
        from devrun.parallel.launch import launch

        try:
            launch([command, *place, *rest], _processes(args, cfg), signals)
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


def number_or_auto(text: str) -> int | str:
    if text == "auto":
        return text
    if not text.isdecimal() or not 0 < int(text[:6]) < 10**5:
        raise argparse.ArgumentTypeError(
            f"{text!r} is neither a number of 1 or more nor 'auto'"
        )
    return int(text)
