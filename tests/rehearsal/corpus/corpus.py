"""Programs with planted faults, and what `devrun check` makes of them.

`faults/NAME.py` is a program as users write it. With `NAME.yaml` beside it, it is a
module of that config (`--import NAME`); without, it is a script of its own. A line with
a fault ends in `# fault[cuda,hpu]: kind`, with the devices where it is one and the kind
of the finding, or a word of its kind or subject; several are parted by `; `, as in
`# fault[cuda]: host sync; fault[ipu]: refused`. Lines of the YAML are marked likewise.

The lines below may hold the remedy: `# remedy: LINE`, or `# remedy[cuda]: LINE` on some
of the devices, replaces the line with the fault, `# remedy: -` takes it out, each
`# remedy+: LINE` is one more line; all with the indentation of the line with the fault.
`# remedy: --cfg-options KEY=VALUE` changes the config.

`# check: WORDS` gives words to the command, and `# words: WORDS` to a script.
`clean/NAME.py` has none; `# devices: hpu` says where it is tried, if not everywhere.
"""

from __future__ import annotations

import ast
import json
import os
import re
import shlex
import shutil
import tempfile
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from tests.support import zygote
from tests.support.strict import zip_strict

HERE = Path(__file__).parent
DEVICES = ("cpu", "cuda", "hpu", "ipu")
PLACES = ("at the line", "elsewhere", "missed", "lost")
_FAULT = re.compile(r"fault\[([\w, ]+)\]: ([^;#]+)")
_REMEDY = re.compile(r"^ *# remedy(?:\[([\w, ]+)\])?(\+?): ?(.*)$")
_WORDS = re.compile(r"^# (check|words|devices): (.+)$", re.MULTILINE)
_OPTION = "--cfg-options "


@dataclass(frozen=True)
class Mark:
    """A planted fault on one device."""

    file: str
    line: int
    device: str
    kind: str
    remedy: bool

    def __str__(self):
        return f"{self.file}:{self.line} [{self.device}] {self.kind}"


@dataclass(frozen=True)
class Program:
    """A script, or a config with its module."""

    path: Path

    @property
    def name(self):
        return f"{self.path.parent.name}/{self.path.stem}"

    @cached_property
    def files(self):
        """Name -> lines: the Python first, and the config where there is one."""
        paths = [self.path, self.path.with_suffix(".yaml")]
        return {p.name: p.read_text().splitlines() for p in paths if p.exists()}

    @cached_property
    def marks(self):
        return [
            Mark(name, number, device.strip(), kind.strip(), self._mended(rest, device))
            for name, lines in self.files.items()
            for number, line in enumerate(lines, 1)
            for rest in [lines[number:]]
            for devices, kind in _FAULT.findall(line)
            for device in devices.split(",")
        ]

    @property
    def devices(self):
        """Those that something is said of."""
        marked = {mark.device for mark in self.marks}
        if self.path.parent.name == "clean":
            marked = set(" ".join(self._words("devices")).split()) or set(DEVICES)
        return [device for device in DEVICES if device in marked]

    def mended(self, device, findings=()):
        """The files with the remedies of `device` in place, and options of the config.

        Where what `findings` say to write is a line or keys of the config, these are
        what takes its place. Each line keeps its number.
        """
        options, files = [], {}
        for name, lines in self.files.items():
            files[name] = list(lines)
            for number, line in enumerate(lines):
                faults = [k for names, k in _FAULT.findall(line) if device in names]
                remedies = list(_remedies(lines, number, device)) if faults else []
                if len(faults) == len(remedies) == 1:
                    mark = Mark(name, number + 1, device, faults[0].strip(), True)
                    remedies = [(number, _printed(findings, mark, *remedies[0], line))]
                for at, text in remedies:
                    if text.lstrip().startswith(_OPTION):
                        options += shlex.split(text.partition(_OPTION)[2])
                    else:
                        files[name][at] = text
        return files, options

    def check(self, devices, files=None, options=()):
        """Device -> the result of `devrun check --json` there."""
        with tempfile.TemporaryDirectory(prefix="corpus-") as folder:
            shutil.copytree(HERE / "base", folder, dirs_exist_ok=True)
            for name, lines in (files or self.files).items():
                Path(folder, name).write_text("\n".join(lines) + "\n")
            config = f"{self.path.stem}.yaml"
            of_config = config in self.files
            words = [config, "--import", self.path.stem] if of_config else []
            words += [word for name in devices for word in ("--device", name)]
            words += shlex.split(" ".join(self._words("check")))
            if options:
                words += ["--cfg-options", *options]
            if not of_config:
                words += [self.path.name, *shlex.split(" ".join(self._words("words")))]
            env = {**os.environ, "PYTHONPATH": str(zygote.ROOT)}
            env["CUDA_VISIBLE_DEVICES"] = ""
            command = ["-m", "devrun", "check", "--json", *words]
            done = zygote.run(command, env=env, cwd=folder, timeout=400)
        try:
            rows = json.loads(done.stdout)["devices"]
        except ValueError:
            raise AssertionError(f"{self.name}: {done.stdout}{done.stderr}") from None
        return {row["device"]: row for row in rows}

    def _words(self, key):
        text = "\n".join(next(iter(self.files.values())))
        return [words for name, words in _WORDS.findall(text) if name == key]

    def _mended(self, rest, device):
        return next(_remedies(["", *rest], 0, device.strip()), None) is not None


def _remedies(lines, number, device):
    """(index, line) of what takes the place of line `number` and of those below it."""
    indent = re.match(" *", lines[number])[0]
    for at in range(number + 1, len(lines)):
        found = _REMEDY.match(lines[at])
        if found is None:
            return
        devices, more, text = found.groups()
        if devices is None or device in devices:
            yield at if more else number, indent + ("pass" if text == "-" else text)


def _printed(findings, mark, at, text, line):
    """What a finding at `mark` says to write, if that is code; else `text`."""
    for one in findings:
        if not (_fits(one, mark) and _at(one, mark)) or at != mark.line - 1:
            continue
        fix, said = one["fix"] or {}, one["remedy"]
        if text.lstrip().startswith(_OPTION) and None not in fix.values() and fix:
            keys = (f"{key}={json.dumps(value)}" for key, value in fix.items())
            return _OPTION + " ".join(map(shlex.quote, keys))
        target, code = line.partition(" = ")[0], line.partition("  # ")[0]
        same = said.startswith((f"{target.strip()} = ", "self.register_buffer("))
        if " = " in code and same and "..." not in said:
            with suppress(SyntaxError):
                ast.parse(said)
                return line[: len(line) - len(line.lstrip())] + said
    return text


@dataclass
class Score:
    """What came of some programs."""

    places: Counter = field(default_factory=Counter)
    """(device, one of `PLACES`) -> faults."""
    remedies: Counter = field(default_factory=Counter)
    """(device, applied | gone | trains) -> remedies."""
    alarms: Counter = field(default_factory=Counter)
    """Device -> findings where there is no fault."""
    told: list[str] = field(default_factory=list)
    """A line for each thing that is not as it should be."""

    def share(self, device):
        """Of the faults, in percent, those that were found at their line."""
        count = sum(self.places[device, place] for place in PLACES)
        return 100 * self.places[device, PLACES[0]] / count if count else 100.0

    def table(self):
        head = ("device", *PLACES, "%", "false alarms", "applied", "gone", "trains")
        rows = [head]
        for device in DEVICES:
            counts = [self.places[device, place] for place in PLACES]
            share = f"{self.share(device):.1f}"
            mended = [self.remedies[device, step] for step in head[-3:]]
            rows.append((device, *counts, share, self.alarms[device], *mended))
        widths = [max(len(str(row[i])) for row in rows) for i in range(len(head))]
        lines = (
            "  ".join(str(cell).ljust(width) for cell, width in zip_strict(row, widths))
            for row in rows
        )
        return "\n".join([*(line.rstrip() for line in lines), *self.told])


def programs(*names):
    """Those of the corpus, or of the given names `faults/NAME` and `clean/NAME`."""
    paths = sorted(HERE.glob("faults/*.py")) + sorted(HERE.glob("clean/*.py"))
    every = [Program(path) for path in paths]
    return [one for one in every if not names or one.name in names]


def score(chosen, devices=DEVICES, at_once=3):
    """Check each program where something is said of it, and count what was found."""
    total = Score()
    tasks = [
        (program, [d for d in program.devices if d in devices]) for program in chosen
    ]
    with ThreadPoolExecutor(at_once) as pool:
        work = [pool.submit(_judged, *task) for task in tasks if task[1]]
        for found in work:
            part = found.result()
            for name in ("places", "remedies", "alarms", "told"):
                setattr(total, name, getattr(total, name) + getattr(part, name))
    return total


def _judged(program, devices):
    part, results = Score(), program.check(devices)
    for device in devices:
        marks = [mark for mark in program.marks if mark.device == device]
        _placed(part, program, device, marks, results[device])
        if any(mark.remedy for mark in marks):
            files, options = program.mended(device, results[device]["findings"])
            again = program.check([device], files, options)[device]
            _remedied(part, program, device, marks, again)
    return part


def _placed(part, program, device, marks, result):
    left = list(result["findings"])
    missing = []
    for mark in marks:
        here = [one for one in left if _fits(one, mark) and _at(one, mark)]
        if here:
            left = [one for one in left if one not in here or _shared(one, marks, mark)]
            part.places[device, "at the line"] += 1
        else:
            missing.append(mark)
    for mark in missing:
        near = next((one for one in left if _fits(one, mark)), None)
        if near is not None:
            left.remove(near)
            place, at = "elsewhere", f" but at {near['site']}"
        else:
            place, at = ("lost" if result["ended"] else "missed"), ""
        part.places[device, place] += 1
        part.told.append(f"{place}: {mark}{at}")
    alarms = [one for one in left if not _of_a_line(one, marks)]
    part.alarms[device] += len(alarms)
    part.told += [
        f"false alarm: {program.name} {_brief(device, one)}" for one in alarms
    ]


def _remedied(part, program, device, marks, again):
    trains = not again["ended"] and not any(
        one["severity"] == "breaks" for one in again["findings"]
    )
    for mark in marks:
        if not mark.remedy:
            continue
        here = [one for one in again["findings"] if _fits(one, mark) and _at(one, mark)]
        part.remedies[device, "applied"] += 1
        part.remedies[device, "gone"] += trains and not here
        part.remedies[device, "trains"] += trains
        if here:
            part.told.append(f"not gone: {mark}")
    if not trains:
        rows = [_brief(device, one) for one in again["findings"]]
        part.told.append(f"does not train: {program.name} {rows} {again['ended']}")


def _fits(finding, mark):
    return mark.kind in f"{finding['kind']}: {finding['what']}"


def _at(finding, mark):
    place = (finding["site"] or "").rpartition("/")[2]
    return place == f"{mark.file}:{mark.line}"


def _of_a_line(finding, marks):
    return any(_at(finding, mark) for mark in marks)


def _shared(finding, marks, mark):
    """Whether another fault of the same line has the finding too."""
    same = [one for one in marks if _at(finding, one) and _fits(finding, one)]
    return any(one is not mark for one in same)


def _brief(device, finding):
    site = (finding["site"] or "").rpartition("/")[2]
    return (
        f"[{device}] {finding['kind']}: {finding['what']} at {site}: {finding['why']}"
    )
