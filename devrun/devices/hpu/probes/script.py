"""What a Gaudi would do slowly of a program of the user's own."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from importlib import import_module
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import nn
from torch.optim import optimizer as optimizers

from devrun.devices.emulation import use_emulators
from devrun.devices.hpu.probes.compiled import compiling, set_mode
from devrun.devices.hpu.probes.counts import Counts
from devrun.devices.hpu.sdk import emulator
from devrun.probes.compile_log import CompileLog
from devrun.probes.finding import Finding
from devrun.probes.gpu_only import gpu_only
from devrun.probes.hard_wired import Substitutes, telling
from devrun.probes.hosted import hosted, placed
from devrun.probes.kinds import devices_of, imported_by, names_device
from devrun.probes.notebook import Notebook
from devrun.probes.probe import ProgramProbe
from devrun.probes.sites import here
from devrun.probes.unplaced import led

_UNMARKED = 3
"""Updates in one graph that no loop with marks comes to."""
_DEVICE = "hpu"
_IMPORTS = (ast.Import, ast.ImportFrom)
_INSTEAD = {
    "cuda": 'x.to("hpu")',
    "module": "torch.hpu.NAME, or leave it out",
    "map_location": 'map_location="cpu", and .to("hpu") of what is loaded',
    "backend": 'init_process_group("hccl")',
    "DataParallel": "one process a card: DistributedDataParallel, backend hccl",
    "autocast": 'torch.autocast("hpu", dtype=torch.bfloat16)',
    "GradScaler": "leave it out: bf16 needs no loss scaling",
    "device": 'device="hpu"',
}
"""What stands for CUDA in a program of one's own."""
_CORE = "import habana_frameworks.torch.core as htcore"
_IMPORT = ("habana_frameworks", "torch knows no device hpu before it is imported")
_MARK = f"htcore.mark_step() after loss.backward() and after optimizer.step() ({_CORE})"
_UNUSED = (
    "hpu",
    "the program put nothing on a Gaudi: nothing of it was looked at",
    'model.to("hpu"), and the same for each batch',
)
_ROWS = (
    "its gradients are sparse tensors, which the device has not",
    "leave sparse=True out: the gradients have the same numbers",
)
_MARKS = ("mark_step", "flush by optimizer", "flush by graph replay")
"""What cuts the graph in each update; values that are read may cease to be."""


class HPUProgram(ProgramProbe):
    """Counts the updates of any optimizer, and what waits in the lazy graph at each."""

    torch_release = "2.5"

    def __init__(self, note: Notebook, script: str, memory: int | None) -> None:
        self._note, self._script, self._memory = note, script, memory
        self._marks = self._unmarked = self._longest = 0
        self._site: str | None = None
        self._optimizers: set[int] = set()

    @contextmanager
    def getting_past(self) -> Iterator[None]:
        """Within, what breaks is repaired: tensors elsewhere, and what names CUDA."""
        use_emulators()
        # a program that never saw a Gaudi is led along its path for CUDA
        ported = _DEVICE in devices_of(self._script)
        set_mode(self._note, self._script)
        import_module("habana_frameworks.torch.core")
        sdk: Any = emulator()
        self._emulator = sdk
        if self._memory is not None:
            self._emulator.set_memory_limit(self._memory)
        self._counts, self._log = Counts(self._emulator), CompileLog()
        stepped = optimizers.register_optimizer_step_post_hook(self._stepped)
        tell = telling(self._note, _DEVICE, _INSTEAD)
        repaired = placed(hosted(_DEVICE, self._note))
        unlike = gpu_only(self._note, _DEVICE)
        compiles = compiling(self._note, self._emulator.report().mode == "lazy")
        placing = Substitutes(_DEVICE, tell, not ported)
        rows = _rows(nn.Embedding, self._note), _rows(nn.EmbeddingBag, self._note)
        plain = not names_device(self._script)
        leading = led(_DEVICE, self._note) if plain else nullcontext()
        with stepped, placing, repaired, unlike, compiles, rows[0], rows[1], leading:
            yield
        if not ported:
            self._note.found(self._not_imported())

    def _not_imported(self) -> Finding:
        tree = ast.parse(Path(self._script).read_bytes())
        imports = (n for n in ast.walk(tree) if isinstance(n, _IMPORTS))
        lines = (one.lineno for one in imports if "torch" in imported_by(one))
        site = f"{self._script}:{min(lines, default=1)}"
        return Finding("breaks", "not imported", *_IMPORT, _CORE, site)

    def found(self) -> None:
        """Note what the emulator counted so far."""
        self._note.fact("updates", self._counts.updates)
        on_device: Any = torch
        if not on_device.hpu.max_memory_allocated():
            self._note.found(Finding("advice", "not used", *_UNUSED))
            return
        self._note.fact("launches an update", self._counts.launches)
        if self._emulator.report().mode == "lazy" and self._longest >= _UNMARKED:
            self._note.found(self._no_mark())
        found = self._counts.findings(max(len(self._optimizers), 1))
        again = (*self._log.findings(), *self._counts.compiled_again())
        for one in (*found, *again):
            self._note.found(one)

    def _stepped(self, optimizer: Any, *_: Any) -> None:
        self._optimizers.add(id(optimizer))
        self._counts.update()
        totals = self._emulator.report().totals
        marks = sum(totals.get(name, 0) for name in _MARKS)
        self._unmarked = 0 if marks > self._marks else self._unmarked + 1
        self._marks = marks
        if self._unmarked > self._longest:
            self._longest, self._site = self._unmarked, here(2)

    def _no_mark(self) -> Finding:
        why = (
            f"nothing but values that are read cuts the lazy graph in {self._longest} "
            "updates: until then nothing runs, no memory is freed (in lazy mode, the "
            "SDK's up to 1.21 where PT_HPU_LAZY_MODE is not set)"
        )
        return Finding("slow", "no step mark", "mark_step", why, _MARK, self._site)


def _rows(kind: type, note: Notebook) -> AbstractContextManager[Any]:
    """Within, embeddings of `kind` whose gradients would be sparse have dense ones."""
    build: Any = kind.__init__  # type: ignore[misc]

    def built(rows: Any, *args: Any, **kwargs: Any) -> None:
        build(rows, *args, **kwargs)
        if rows.sparse:
            rows.sparse = False
            row = ("sparse", f"nn.{kind.__name__}", *_ROWS, here(2))
            note.found(Finding("breaks", *row))

    return patch.object(kind, "__init__", built)
