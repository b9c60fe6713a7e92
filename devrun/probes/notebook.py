"""Where a rehearsal writes what it finds, one line each, so that a crash loses none."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from devrun.errors import DevrunError
from devrun.probes.finding import Finding


class Notebook:
    """Written by one child process, to a file of its own."""

    def __init__(self, path: Path) -> None:
        self.folder = path.parent
        """What is left there goes with it, also when the process is lost."""
        self._file = path.open("a", encoding="utf-8", buffering=1)
        self.seen: dict[Any, Finding] = {}
        """What was found, by its key."""
        self.quiet = False
        """Whether what is found now is of a trial, and not told."""
        self.left_out = False
        """Whether updates go on without what raised in them."""
        self.mended: set[Any] = set()
        """Of what was told, that which is as once mended in all that comes after."""

    @property
    def breaks(self) -> bool:
        """Whether something was found that breaks."""
        return any(one.severity == "breaks" for one in self.seen.values())

    def found(self, finding: Finding) -> None:
        """Write `finding` down; the last of those with one key counts."""
        if not self.quiet and self.seen.get(finding.key) != finding:
            self.seen[finding.key] = finding
            self._write("finding", asdict(finding))

    def fact(self, name: str, value: Any) -> None:
        """Write down something measured; the last value of a name counts."""
        self._write("fact", [name, value])

    def reduced(self, key: str, less: int, size: int) -> None:
        """Write down that the config's `key` is `less` here, in place of `size`."""
        self._write("reduced", [key, less, size])

    def refused(self, error: DevrunError) -> None:
        """What cannot be got past, as `devrun train` says it."""
        self._write("refused", [error.exit_code, str(error)])

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Within, the rehearsal is at `name`."""
        self._write("stage", name)
        yield

    def done(self) -> None:
        """The rehearsal came to its end."""
        self._write("stage", None)

    def _write(self, kind: str, value: Any) -> None:
        self._file.write(json.dumps({kind: value}, default=str) + "\n")


@dataclass
class Notes:
    """What a notebook holds."""

    findings: list[Finding] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)
    sizes: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Key of the config -> what it is here, and what it was."""
    refused: tuple[int, str] | None = None
    """Exit status and line of what could not be got past."""
    stage: str | None = "the start"
    """Where it was when it ended; None at its end."""

    @property
    def reduced(self) -> list[str]:
        """A clause for each size that was made smaller."""
        return [
            f"{key}: {less}, not {size}"
            for key, (less, size) in self.sizes.items()
            if less != size
        ]


def read(path: Path) -> Notes:
    """The notes in the file, as far as they are whole."""
    notes = Notes()
    found: dict[Any, Finding] = {}
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    for line in lines:
        try:
            ((kind, value),) = json.loads(line).items()
        except ValueError:  # the process ended in the middle of the last one
            continue
        if kind == "finding":
            lists = {name: tuple(value[name]) for name in ("modes", "stack")}
            finding = Finding(**{**value, **lists})
            found[finding.key] = finding
        elif kind == "fact":
            notes.facts[value[0]] = value[1]
        elif kind == "reduced":
            key, less, size = value
            _, first = notes.sizes.get(key, (less, size))
            notes.sizes[key] = less, first
        elif kind == "refused":
            notes.refused = (value[0], value[1])
        else:
            notes.stage = value
    notes.findings += found.values()
    return notes
