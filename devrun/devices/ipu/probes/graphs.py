"""What the compiled graphs show: their balance, their memory, what they keep."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from torch.utils import checkpoint

from devrun.config.tree import inside
from devrun.devices.ipu import adapter
from devrun.devices.ipu.batch import Flat, rebuild, rows_of
from devrun.devices.ipu.probes.arithmetic import Sizes
from devrun.devices.ipu.probes.balance import Trace, traced
from devrun.devices.ipu.probes.memory import Memory, is_large
from devrun.devices.ipu.probes.options import key_of, settings_of
from devrun.devices.ipu.probes.refused import frozen
from devrun.devices.ipu.probes.splits import proposed, torn, unbalanced
from devrun.devices.ipu.split import split_of
from devrun.errors import ConfigError
from devrun.hooks.base import Priority
from devrun.probes.finding import Finding
from devrun.probes.keys import line_of, pasted
from devrun.probes.probe import Probe, Training, own_hooks, safely
from devrun.probes.sites import here, maker_of
from devrun.probes.workarounds import refusal
from devrun.run import Run
from devrun.torch_features import uncompiled

_CHANGES = (
    "it is no tensor and changes from batch to batch; the graph keeps its first value"
)
_PLANNED = (
    "torch.utils.checkpoint asks for torch.ipu, which nobody has",
    "h = block(x) in place of checkpoint(block, x), then "
    "poptorch.recomputationCheckpoint(h): only that is kept for the backward pass",
)
_TENSOR = "make it a tensor in the data set or its collate_fn"
_ROWS = (
    "return it with the samples in front, such as edges.T, padded to one number of rows"
)


class Graphs(Probe):
    """Looks at the model before its first update and at the graphs after it."""

    priority = Priority.LOWEST
    _sizes: Sizes | None = None
    _trace: Trace | None = None
    _loader: Any = None
    _undivided: int | None = None
    """IPUs over which nothing divides the model."""
    _looked = False
    """Whether an update of this run was looked at."""

    @contextmanager
    def throughout(self) -> Iterator[None]:
        """PopTorch captures what is written, not what torch makes of it."""
        divided = patch.object(adapter, "rows_of", self._rows)
        planned = patch.object(checkpoint, "checkpoint", self._called)
        with uncompiled(), divided, planned:
            yield

    def _rows(self, flat: Flat, parts: int) -> int:
        """Those of the batch, whose tensors may have others here."""
        try:
            return rows_of(flat, parts)
        except ConfigError as error:
            if parts > 1 or any(not one.numel() for one in flat.tensors):
                raise
            site = maker_of(self._loader, str(error).partition(" ")[0])
            self.note.found(replace(refusal(error), remedy=_ROWS, site=site))
            return len(flat.tensors[0]) if flat.tensors[0].dim() else 1

    def _called(self, function: Any, *args: Any, **kwargs: Any) -> Any:
        """`torch.utils.checkpoint.checkpoint`, which does without."""
        row = ("cannot be compiled", "checkpoint", *_PLANNED, here())
        self.note.found(Finding("breaks", *row))
        own = ("use_reentrant", "preserve_rng_state", "context_fn", "determinism_check")
        return function(*args, **{k: v for k, v in kwargs.items() if k not in own})

    def before(self, cfg: Any) -> None:
        settings = settings_of(cfg, self.request)
        if settings is not None and cfg.get("data"):
            self._sizes = Sizes(cfg, settings)
        self._cfg = cfg
        self._site = line_of(cfg, key_of(cfg, "num_ipus"))
        ipus = inside(cfg, key_of(cfg, "num_ipus"))
        edges = inside(cfg, key_of(cfg, "train_split_edges"))
        if type(ipus) is int and ipus > 1 and not edges:
            self._undivided = ipus

    def changes(self, cfg: Any) -> dict[str, Any]:
        """What nothing divides runs on one IPU, and gets edges there."""
        return {key_of(cfg, "num_ipus"): None} if self._undivided else {}

    def built(self, training: Training) -> None:
        self._looked, self._loader = False, training.loaders[0]
        training.runner.register_hook(self)

    def before_train_iter(self, runner: Run) -> None:
        if not self._looked:
            safely(self.note, self._look_before, runner)

    def after_train_iter(self, runner: Run) -> None:
        if not self._looked:
            safely(self.note, self._look_after, runner)
        self._looked = True

    def work_around(self, error: Exception, cfg: Any) -> dict[str, Any] | None:
        """A split that names what is not there is left out."""
        key = "train_split_edges"
        if getattr(error, "key", None) != key:
            return None
        fix: dict[str, Any] = {key_of(cfg, key): None, key_of(cfg, "num_ipus"): None}
        reason = str(getattr(error, "reason", error))
        remedy = f"give the name of a layer that forward calls; or {pasted(fix)}"
        site = line_of(cfg, f"ipu.{key}", f"device.{key}")
        self.note.found(Finding("breaks", "split", key, reason, remedy, site, fix=fix))
        return fix

    def _look_before(self, runner: Any) -> None:
        """While the model is still as the user wrote it."""
        sizes, cfg = self._sizes, self._cfg
        step = runner.adapter.executors.module.step
        flat = runner.adapter.flat(runner.data_batch, "train")
        placed = bool(split_of(step))
        if not (placed or self._undivided or is_large(step, self.request.memory)):
            return
        try:
            trace = self._trace = traced(step, rebuild(flat.template, flat.tensors))
        except ConfigError:
            trace = None  # the model cannot be followed without values
        if self._undivided is not None:
            self.note.found(proposed(trace, self._undivided, self._site, cfg))
        if sizes is None or trace is None or not placed:
            return
        found = unbalanced(step, trace, cfg, sizes.lines["split"])
        if found is not None:
            self.note.found(found)
        edges = inside(cfg, key_of(cfg, "train_split_edges"))
        for one in torn(step, trace, list(edges or ()), cfg):
            self.note.found(one)

    def _look_after(self, runner: Any) -> None:
        executors = runner.adapter.executors
        if executors.trainer is None:
            return  # it could not be compiled
        if self._sizes is not None:
            memory = Memory(runner.adapter, self._sizes, self.request.memory)
            self.note.fact("memory of each IPU", memory.rows)
            found = memory.finding(self._cfg, self._trace)
            if found is not None:
                self.note.found(found)

    def after(self, training: Training) -> Iterator[Finding]:
        executors = getattr(training.runner.adapter, "executors", None)
        if executors is None:
            return
        runner, seen = training.runner, set()
        for each in filter(None, (executors.trainer, *executors.evaluators)):
            each.call.watch.look_again(runner, *own_hooks(runner))
            for one in each.call.watch.findings:
                if one.site not in seen:  # the graph of the evaluation does it too
                    yield frozen(one)
                seen.add(one.site)
            for path in sorted(each.changing):
                site = maker_of(self._loader, path)
                yield Finding("differs", "once", path, _CHANGES, _TENSOR, site)
