"""A program of the user's own on an emulator, in a process of its own."""

from __future__ import annotations

import builtins
import os
import sys
import threading
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from devrun.blame import cause_of
from devrun.device_facts import FACTS
from devrun.errors import ConfigError
from devrun.probes.finding import Finding
from devrun.probes.kinds import devices_of
from devrun.probes.lifetime import PARTS
from devrun.probes.notebook import Notebook
from devrun.probes.probe import ProgramProbe, safely
from devrun.probes.sites import of_error
from devrun.rehearsal.check.graph_faults import kept_by_program
from devrun.rehearsal.check.left_out import run_script
from devrun.rehearsal.check.requests import probes_of, usual
from devrun.torch_features import needs

_CUT = (
    "advice",
    "not to its end",
    "a loop",
    "it trained long enough to be seen, and was left for what comes after it",
    "fewer turns, or --timeout, which gives it more seconds",
)


@dataclass(frozen=True)
class Program:
    """What one child process is asked to run."""

    script: str
    words: tuple[str, ...]
    device: str
    memory: int | None = None
    emulated: bool = True
    mode: str = ""


def programs(
    script: str, words: tuple[str, ...], devices: tuple[str, ...], memory: int | None
) -> list[Program]:
    """A program for each device that it is written for, or of `devices` if given.

    Raises:
        ConfigError: it is for none of them, or nobody knows for which.
        UnsupportedFeatureError: this torch is older than the emulator's.
    """
    known = [name for name in usual() if probes_of(name).of_program is not None]
    if wrong := [name for name in devices if name not in known]:
        raise ConfigError(
            f"a program is checked on the emulators of {' and '.join(known)}, not "
            f"on {wrong[0]!r}: give a config for that"
        )
    chosen = devices or tuple(devices_of(script))
    if not chosen:
        packages = " nor ".join(FACTS[name].packages[0] for name in known)
        flags = " or ".join(f"--device {name}" for name in known)
        raise ConfigError(
            f"{script} imports neither {packages}: say which it is for, before its "
            f"name: {flags} {script}"
        )
    for name in chosen:
        kind: Any = probes_of(name).of_program
        needs(kind.torch_release, f"a program for {name} on its emulator")
    return [Program(script, words, device, memory) for device in chosen]


def run(program: Program, note: Notebook, seconds: float) -> None:
    """Run it to its end, or for `seconds`, and write down what is seen."""
    kind: Any = probes_of(program.device).of_program
    watch: ProgramProbe = kind(note, program.script, program.memory)
    timer = threading.Timer(seconds, _end, (note, watch))
    timer.daemon = True
    sys.argv[:] = [program.script, *program.words]
    sys.path.insert(0, str(Path(program.script).resolve().parent))
    with note.stage("the program"):
        timer.start()
        try:
            with watch.getting_past(), kept_by_program(note):
                run_script(
                    program.script,
                    _main(program.script),
                    lambda error: _broke(note, error, cause_of(error)),
                    lambda site: note.found(Finding(*_CUT, site)),
                    seconds / PARTS,
                )
        except SystemExit as stop:
            if stop.code:
                _broke(note, stop, f"exit status {stop.code}")
        except BaseException as error:  # noqa: BLE001 - the user's own: a finding
            _broke(note, error, cause_of(error))
        timer.cancel()
        safely(note, watch.found)
    note.done()


def _main(script: str) -> dict[str, Any]:
    """The variables of the program, which other modules find as `__main__`."""
    names = vars(import_module("__main__"))
    names.clear()  # of those of the command
    # as of any script: a worker that is spawned looks there
    names.update(__name__="__main__", __file__=script, __builtins__=builtins)
    names.update(dict.fromkeys(("__doc__", "__loader__", "__package__", "__spec__")))
    return names


def _broke(note: Notebook, error: BaseException, why: str) -> None:
    name, site = type(error).__name__, of_error(error)
    remedy = "mend the line that is named"
    if isinstance(error, ModuleNotFoundError):
        remedy = f"install what has {error.name!r} here, or leave the line out"
    note.found(Finding("breaks", "raises", name, why, remedy, site))


def _end(note: Notebook, watch: ProgramProbe) -> None:
    """In a thread of its own: the program may be anywhere."""
    why = "its time was over; what was seen until then is here"
    remedy = "--timeout gives it more seconds; fewer steps or samples end it"
    note.found(Finding("advice", "not to its end", "the program", why, remedy))
    safely(note, watch.found)
    os._exit(0)
