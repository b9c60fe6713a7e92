"""What a compilation for the IPU took, and what came of it."""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from devrun.devices.ipu.split import split_of

MIB = 2**20
logger = logging.getLogger("devrun")


@dataclass(eq=False)
class CompileReport:
    """Around the compilation of one executor: logs its progress and duration.

    Attributes, after it: `seconds`, `reused` (whether a cached executable was; None
    where that cannot be seen), `memory` (bytes per IPU by purpose; None where the SDK
    gives none) and `lines`, which the log has too. A compilation that failed leaves
    `seconds` only.

    Args:
        executor: what `trainingModel` or `inferenceModel` returned.
        sdk: PopTorch.
        what: the name of the graph in the log.
        cache_dir: the directory of executables, where there is one.
        interval: seconds between two lines on a long compilation.
    """

    executor: Any
    sdk: Any
    what: str = "training"
    cache_dir: str | None = None
    interval: float = 15.0
    seconds: float = field(default=0.0, init=False)
    reused: bool | None = field(default=None, init=False)
    memory: list[dict[str, int]] | None = field(default=None, init=False)
    lines: list[str] = field(default_factory=list, init=False)

    def __enter__(self) -> CompileReport:
        self._stored = _files(self.cache_dir)
        self._done = threading.Event()
        self._started = time.perf_counter()
        logger.info("compiling the %s graph for the IPU", self.what)
        self._progress = threading.Thread(
            target=self._log_progress, name="ipu-compile-progress", daemon=True
        )
        self._progress.start()
        return self

    def __exit__(self, kind: object, *details: object) -> None:
        self.seconds = time.perf_counter() - self._started
        self._done.set()
        self._progress.join()
        if kind is None:
            self._conclude()

    def _log_progress(self) -> None:
        while not self._done.wait(self.interval):
            logger.info(
                "compiling the %s graph: %.0f s so far",
                self.what,
                time.perf_counter() - self._started,
            )

    def _conclude(self) -> None:
        self.lines = [
            f"compiled the {self.what} graph in {self.seconds:.1f} s; {self._cache()}",
            *self._memory(),
        ]
        for line in self.lines:
            logger.info("%s", line)

    def _cache(self) -> str:
        """PopTorch does not say whether it loaded an executable; its files do."""
        if not self.cache_dir:
            return "executables are not cached"
        if getattr(self.sdk, "emulation", None) is not None:
            return f"the emulator keeps no executables in {self.cache_dir}"
        if _files(self.cache_dir) != self._stored:
            self.reused = False
            return f"the executable was stored in {self.cache_dir}"
        self.reused = bool(self._stored)
        if self.reused:
            return f"a cached executable of {self.cache_dir} was reused"
        return f"no executable was stored in {self.cache_dir}"

    def _memory(self) -> list[str]:
        estimate = getattr(
            getattr(self.sdk, "emulation", None), "memory_estimate", None
        )
        if estimate is None:
            return [
                "memory per IPU: PopTorch does not tell; profile the run and open its "
                "profile.pop in PopVision"
            ]
        self.memory = estimate(self.executor)
        placed = split_of(self.executor.model)
        first = {ipu: name for name, ipu in reversed(placed)}
        return [
            _memory_line(ipu, row, first.get(ipu))
            for ipu, row in enumerate(self.memory)
        ]


def _memory_line(ipu: int, row: dict[str, int], block: str | None) -> str:
    parts = ", ".join(f"{name} {size / MIB:.1f}" for name, size in row.items())
    begins = f" (from {block})" if block else ""
    return (
        f"memory of IPU {ipu}{begins}: about {sum(row.values()) / MIB:.1f} MiB "
        f"({parts}), the emulator's estimate for one micro-batch"
    )


def _files(directory: str | None) -> dict[str, float]:
    """Path -> time of change of every file in it."""
    if not directory or not Path(directory).is_dir():
        return {}
    return {
        str(path): path.stat().st_mtime
        for path in Path(directory).rglob("*")
        if path.is_file()
    }
