"""`check`: each rehearsal in a process of its own, and one result of them all."""

from __future__ import annotations

import multiprocessing
import os
import re
import signal
import sys
import tempfile
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from itertools import groupby
from multiprocessing.connection import wait
from pathlib import Path
from time import monotonic
from typing import Any

from devrun.device_facts import FACTS
from devrun.devices.resolve import adapter_class, available_devices
from devrun.errors import ConfigError, DevrunError
from devrun.probes.finding import Finding
from devrun.probes.lifetime import safe_path
from devrun.probes.notebook import Notes, read
from devrun.probes.request import Grants
from devrun.probes.sites import user_line
from devrun.rehearsal.check import child
from devrun.rehearsal.check.findings import Check, DeviceCheck, merged
from devrun.rehearsal.check.programs import programs, run
from devrun.rehearsal.check.requests import requests
from devrun.torch_features import needs

TIMEOUT = 600.0
_GRACE = 5.0
"""Seconds between the stacks of a rehearsal that takes too long and its end."""
_CALL = re.compile(r'File "(.+?)", line (\d+) in (.+)')


def check(
    cfg: Any,
    grants: Grants,
    *,
    devices: Sequence[str] = (),
    steps: int = 3,
    samples: int = 8,
    memory: int | None = None,
    timeout: float = TIMEOUT,
) -> Check:
    """Rehearse `cfg` on each device and say what breaks, is slow or differs there.

    Args:
        cfg: a checked config; nothing in its work_dir is touched.
        grants: what it may import and call.
        devices: names; by default those that can be checked without being here.
        steps: updates of each half of the run.
        samples: of a batch at the most.
        memory: bytes that the device has, for the findings about it.
        timeout: seconds for one rehearsal.

    Raises:
        ConfigError: `steps` or `samples` is below 1.
        UnknownNameError: no such device.
        DeviceUnavailableError: it is not here and has no emulator.
        UnsupportedFeatureError: this torch is too old.
        DevrunError: no device gets past one and the same line of the config.
    """
    needs("2.4", "devrun check")
    for name, value in (("--steps", steps), ("--samples", samples)):
        if value < 1:
            raise ConfigError(f"{name} must be 1 or more, got {value}")
    sizes = {"steps": steps, "samples": samples, "memory": memory}
    asked = requests(cfg, grants, devices, **sizes)
    notes = side_by_side(asked, timeout, child.rehearse_config)
    refused = {one.refused for one in notes}
    if len(refused) == 1 and None not in refused:
        raise refusal_of(next(filter(None, refused)))
    return Check(grants.file, steps, _devices(asked, notes, steps))


def check_program(
    script: str,
    words: Sequence[str] = (),
    *,
    devices: Sequence[str] = (),
    memory: int | None = None,
    timeout: float = TIMEOUT,
) -> Check:
    """Run a program of the user's own on the emulators, and say the same of it.

    Args:
        words: its arguments.
        devices: `ipu` and `hpu`; by default those whose SDK it imports.
        memory: bytes of the device.
        timeout: seconds after which it is ended.

    Raises:
        ConfigError: nobody knows for which device it is.
    """
    needs("2.4", "devrun check")
    asked = programs(script, tuple(words), tuple(devices), memory)
    notes = side_by_side(asked, timeout, run)
    return Check(script, 0, _devices(asked, notes))


def side_by_side(asked: Sequence[Any], timeout: float, work: Any) -> list[Notes]:
    """The notes of each: `work(one, notebook, seconds)` in a process of its own."""
    cores, context = max(os.cpu_count() or 1, 1), _context()
    waiting = list(enumerate(asked))
    running: dict[int, _Running] = {}
    notes: dict[int, Notes] = {}
    with safe_path(), ExitStack() as opened:
        while waiting or running:
            while waiting and len(running) < cores:
                number, one = waiting.pop(0)
                running[number] = _Running(context, one, timeout, work)
                opened.enter_context(running[number])
            left = min(one.left() for one in running.values())
            wait([one.process.sentinel for one in running.values()], left)
            for number in [n for n, one in running.items() if one.over()]:
                notes[number] = running.pop(number).notes()
    return [found for _, found in sorted(notes.items())]


def _context() -> Any:
    """Forks this process, which has torch at hand, where nothing else goes on in it.

    Else each begins from nothing, and shares neither threads nor a device with this.
    """
    import torch._dynamo  # noqa: F401 - a second of each that is forked

    sdks = {name for facts in FACTS.values() for name in facts.packages}
    here = [adapter_class(row.name) for row in available_devices() if row.available]
    on_host = all(getattr(adapter, "host_shared", False) for adapter in here)
    idle = on_host and threading.active_count() == 1
    method = "fork" if idle and not sdks & sys.modules.keys() else "spawn"
    return multiprocessing.get_context(method)


def _devices(
    asked: Sequence[Any], notes: Sequence[Notes], steps: int = 0
) -> list[DeviceCheck]:
    pairs = zip(asked, notes)
    by_device = groupby(pairs, lambda pair: pair[0].device)
    return [_device(name, list(found), steps) for name, found in by_device]


def refusal_of(refused: tuple[int, str]) -> DevrunError:
    """The error that `devrun train` ends with, of a config that no device can run."""
    error = DevrunError(refused[1])
    error.exit_code = refused[0]
    return error


def _device(name: str, found: list[tuple[Any, Notes]], steps: int) -> DeviceCheck:
    modes = tuple(request.mode for request, _ in found)
    several = len(found) > 1
    findings = ((r.mode, finding) for r, notes in found for finding in notes.findings)
    facts: dict[str, Any] = {}
    for request, notes in found:
        facts.update({request.mode: notes.facts} if several else notes.facts)
    reduced = dict.fromkeys(each for _, notes in found for each in notes.reduced)
    return DeviceCheck(
        device=name,
        emulated=found[0][0].emulated,
        modes=modes if several else (),
        findings=merged(findings, modes),
        updates=2 * min(n.sizes.get("--steps", (steps, 0))[0] for _, n in found),
        facts=facts,
        reduced=list(reduced),
        ended={r.mode: n.stage for r, n in found if n.stage is not None},
    )


class _Running:
    """The process of one rehearsal; a context that ends it."""

    def __init__(self, context: Any, request: Any, timeout: float, work: Any) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="devrun-check-")
        self._until = monotonic() + timeout
        place = self._folder.name
        self.process = context.Process(
            target=child.main, args=(request, place, self._until, work)
        )
        self.process.start()

    def __enter__(self) -> _Running:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.join()
        self._folder.cleanup()

    def left(self) -> float:
        """Seconds until it is too late."""
        return max(self._until + _GRACE - monotonic(), 0.0)

    def over(self) -> bool:
        return not (self.left() and self.process.is_alive())

    def notes(self) -> Notes:
        """What it wrote; a process that is lost leaves a finding too."""
        late, place = self.process.is_alive(), Path(self._folder.name)
        with self:
            notes, status = read(place / child.NOTES), self.process.exitcode
            if late or status:
                notes.findings.append(_lost(notes, place, late, status))
        return notes


def _lost(notes: Notes, folder: Path, late: bool, status: int | None) -> Finding:
    """Why a rehearsal did not come to its end."""
    calls = list(_calls(folder / child.STACK))
    site = user_line((file, line) for file, line, _ in calls)
    stack = tuple(f"{name} ({file}:{line})" for file, line, name in calls[:20])
    where = f"in {notes.stage}"
    if late:
        kind, why = "hangs", f"it did not get on {where}, and was ended"
        remedy = "look at the line and the stack; --timeout gives it more seconds"
    elif status == child.FAILED:
        kind, why = "defect", f"the check failed {where}: {_last(folder)}"
        remedy = "report it as a defect of devrun, with the config"
    else:
        name = signal.Signals(-status).name if status and status < 0 else status
        kind, why = "crash", f"native code ended the process ({name}) {where}"
        remedy = "look at the line and the operator; give it other inputs, or leave it"
    what = calls[0][2] if calls else str(notes.stage)
    return Finding("breaks", kind, what, why, remedy, site, stack=stack)


def _calls(path: Path) -> Iterator[tuple[str, int, str]]:
    """File, line and function of the thread that was running, the innermost first."""
    text = path.read_text("utf-8", "replace") if path.exists() else ""
    _, found, current = text.partition("Current thread")
    # of a process that is late no thread is the current one; the main one comes last
    thread = current.partition("\n\n")[0] if found else text.rpartition("\n\n")[2]
    for file, line, name in _CALL.findall(thread):
        yield file, int(line), name


def _last(folder: Path) -> str:
    path = folder / child.OUTPUT
    lines: Iterable[str] = path.read_text("utf-8", "replace").splitlines()
    return next((line.strip() for line in reversed(list(lines)) if line.strip()), "")
