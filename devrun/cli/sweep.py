"""`devrun train CONFIG --sweep key=v1,v2 ...`: a run for each combination of values.

Each is the same command with other `--cfg-options`, in a process and a work_dir of its
own, so that a sweep that was stopped goes on by the same command.
"""

from __future__ import annotations

import argparse
import itertools
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from copy import copy
from pathlib import Path
from typing import Any

from devrun.cli.console import say
from devrun.cli.flags import read_config
from devrun.cli.report import aligned_rows
from devrun.cli.signals import TakenDown
from devrun.cli.workdir import DEFAULT_ROOT, holds_run
from devrun.config import check_config
from devrun.errors import ConfigError
from devrun.files import read_json, user_path

_PAUSE = 0.1
"""Seconds between two looks at the processes."""


def sweep(args: argparse.Namespace, words: Sequence[str]) -> int:
    """Run what is not done yet; the status of the first run that failed, or 0.

    Raises:
        ConfigError: a combination that the config does not take.
    """
    if args.resume_from or args.overwrite:
        raise ConfigError(
            "--sweep goes on where it was by itself: leave --resume-from and "
            "--overwrite out, or name another --work-dir"
        )
    choices = {k: v if isinstance(v, list) else [v] for k, v in args.sweep.items()}
    root = user_path(args.work_dir or f"{DEFAULT_ROOT}/{Path(args.config).stem}-sweep")
    cfg = read_config(args)
    combinations = itertools.product(*choices.values())
    folders, status = run_each(
        cfg, words, root, [dict(zip(choices, v)) for v in combinations], args.jobs
    )
    tell(folders, list(choices))
    return status


def run_each(
    cfg: Any,
    words: Sequence[str],
    root: Path,
    combinations: Sequence[dict[str, Any]],
    jobs: int,
    left_out: Sequence[str] = ("--sweep", "--jobs"),
    all_needed: bool = False,
    **more: Any,
) -> tuple[list[Path], int]:
    """The folders of runs with other options each, and the first status that is not 0.

    Args:
        words: of the command, from which the flags `left_out` are taken.
        all_needed: begin none after one that failed.
        more: options of all of them, which name no folder.
    """
    runs: dict[Path, list[str]] = {}
    for options in combinations:
        tried = copy(cfg)
        tried.merge_from_dict({**options, **more})
        check_config(tried)
        folder = root / _name(options)
        own = _own(folder, {**options, **more})
        runs[folder] = [*_without(words, left_out), *own]
    statuses = _run_all(runs, jobs, all_needed)
    return list(runs), next((status for status in statuses.values() if status), 0)


def _name(options: dict[str, Any]) -> str:
    """`lr=0.1,seed=2`: a folder's name."""
    short = [key.rpartition(".")[2] for key in options]
    names = short if len(set(short)) == len(short) else list(options)
    text = ",".join(f"{n}={v}" for n, v in zip(names, options.values()))
    return re.sub(r"[^\w.,=+-]+", "_", text)[:200]


def _own(folder: Path, options: dict[str, Any]) -> list[str]:
    changes = [f"{key}={value!r}" for key, value in options.items()]
    goes_on = ["--resume-from", "auto"] if holds_run(folder) else []
    return ["--work-dir", str(folder), *goes_on, "--cfg-options", *changes]


def _without(words: Sequence[str], flags: Sequence[str]) -> Iterator[str]:
    """The words of the command but for these flags and what they are given."""
    left_out = False
    for word in words:
        if word.startswith("-"):
            left_out = word.split("=")[0] in flags
        if not left_out:
            yield word


def _run_all(
    runs: dict[Path, list[str]], jobs: int, all_needed: bool
) -> dict[Path, int]:
    """The status of each run; after a signal, which all are given, no more is begun."""
    waiting = list(runs)
    ended: dict[Path, int] = {}
    running: dict[Path, subprocess.Popen[bytes]] = {}
    with TakenDown() as signals:
        told = 0
        while running or (waiting and not signals.received):
            while waiting and len(running) < jobs and not signals.received:
                folder = waiting.pop(0)
                if _is_done(folder):
                    say(f"{folder.name}: done already")
                    ended[folder] = 0
                else:
                    running[folder] = _start(folder, runs[folder], quiet=jobs > 1)
            for number in signals.received[told:]:
                for process in running.values():
                    process.send_signal(number)
            told = len(signals.received)
            for folder in [f for f, p in running.items() if p.poll() is not None]:
                ended[folder] = running.pop(folder).returncode
                count = f"{len(ended)} of {len(runs)}"
                say(f"{folder.name}: status {ended[folder]} ({count})")
            if all_needed and any(ended.values()):
                waiting.clear()
            for process in list(running.values())[:1]:
                with suppress(subprocess.TimeoutExpired):
                    process.wait(_PAUSE)
        if signals.received and waiting:
            signals.interrupt()
    return ended


def _start(folder: Path, words: list[str], *, quiet: bool) -> subprocess.Popen[bytes]:
    """Start a run in a session of its own: a terminal's Ctrl-C comes by us alone."""
    command = [sys.executable, "-m", "devrun", *words]
    if not quiet:
        return subprocess.Popen(command, start_new_session=True)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with open(folder.parent / f"{folder.name}.txt", "ab") as out:
        return subprocess.Popen(
            command, start_new_session=True, stdout=out, stderr=subprocess.STDOUT
        )


def _is_done(folder: Path) -> bool:
    with suppress(OSError, ValueError):
        return bool(read_json(folder / "run.json").get("status") == "done")
    return False


def tell(folders: list[Path], keys: list[str]) -> None:
    """A table of what the runs reached."""
    from devrun.rehearsal.report.data import comparison
    from devrun.rehearsal.report.runs import read_run

    there = [read_run(folder) for folder in folders if (folder / "run.json").is_file()]
    if there:
        say(aligned_rows(comparison(there, keys=keys)))
