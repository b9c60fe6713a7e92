"""What a rehearsal on a Gaudi finds: what the emulator counts, and what is refused."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from itertools import chain
from typing import Any
from unittest.mock import patch

import torch
from torch import nn

from devrun.devices.hpu.adapter import HPUAdapter
from devrun.devices.hpu.probes.compiled import or_uncompiled
from devrun.devices.hpu.probes.counts import MODEL, Counts
from devrun.devices.hpu.probes.remedies import FROZEN, MEANS, WIDE, remedy_for
from devrun.hooks.base import Priority
from devrun.models.step_module import StepModule
from devrun.parallel.strategy import optimizers_in
from devrun.probes.births import tag_attributes
from devrun.probes.compile_log import RECOMPILATION, CompileLog
from devrun.probes.finding import MISMATCH, Finding
from devrun.probes.hosted import hosted, placed, tag_host
from devrun.probes.keys import BatchSize, line_of
from devrun.probes.probe import Probe, Training
from devrun.probes.sites import maker_of
from devrun.probes.sources import assigned
from devrun.probes.workarounds import LESS
from devrun.run import Run
from devrun.tensors import named_tensors, nbytes, tensors_in
from devrun.text import size_text
from devrun.torch_features import uncompiled

_FLOAT = "make it float32: dtype=torch.float32, or model.float()"


class HPUProbe(Probe):
    """Reads what the emulator counted when the updates are over."""

    priority = Priority.LOWEST
    _counts: Counts
    _began: bool
    """Whether the first update is over."""

    def before(self, cfg: Any) -> None:
        self._size = BatchSize.of(cfg)
        self._lines = {
            "_amp_": line_of(cfg, "fp16", "optimizer_config.precision"),
            "_fused_": line_of(cfg, "optimizer.fused", "optimizer"),
            "loss": line_of(cfg, "loss"),
            MODEL: line_of(cfg, "model.type", "model"),
        }

    def throughout(self) -> AbstractContextManager[Any]:
        """A lazy graph and torch's compiler do not go together."""
        return uncompiled() if self.request.mode == "lazy" else nullcontext()

    def built(self, training: Training) -> None:
        self._shapes: set[Any] = set()
        self._doubles: set[str] = set()
        tag_attributes(training.runner.hooks, tag_host)
        training.runner.register_hook(self)

    def before_run(self, runner: Run) -> None:
        self._began = False
        sdk: Any = getattr(runner.adapter, "sdk", None)
        self._log, self._counts = CompileLog(), Counts(sdk.emulator, **self._lines)
        runner.eval_contexts.append(self._evaluating)
        save: Any = runner.save_checkpoint

        def saved(*args: Any, **kwargs: Any) -> Any:
            with self._counts.apart():  # what `state_dict` of a hook reads, too
                return save(*args, **kwargs)

        runner.save_checkpoint = saved  # type: ignore[method-assign]

    def before_train_epoch(self, runner: Run) -> None:
        self._counts.between()

    def before_train_iter(self, runner: Run) -> None:
        named = dict(named_tensors(runner.data_batch, "batch"))
        self._doubles |= {name for name, t in named.items() if t.dtype is torch.float64}
        self._shapes.add(tuple(t.shape for t in named.values() if not t.is_nested))

    def after_train_iter(self, runner: Run) -> None:
        self._counts.update()
        first, self._began = not self._began, True
        if first and any(key[1] == MISMATCH for key in self.note.seen):
            self._counts.restart()  # some of it came of what met the device's there

    def _evaluating(self, _: Run) -> AbstractContextManager[Any]:
        return self._counts.apart()

    def getting_past(self) -> AbstractContextManager[Any]:
        if self.request.mode == "lazy":
            return placed(hosted("hpu", self.note))
        train = or_uncompiled(HPUAdapter.train_step)
        test = or_uncompiled(HPUAdapter.eval_step)
        return placed(patch.multiple(HPUAdapter, train_step=train, eval_step=test))

    def after(self, training: Training) -> Iterator[Finding]:
        counts, adapter = getattr(self, "_counts", None), training.runner.adapter
        if counts is None or not counts.updates:
            return
        for one in adapter.frozen():
            severity, why = MEANS[FROZEN]
            remedy = remedy_for(FROZEN, "draws" if one.random else "changes")
            yield Finding(severity, FROZEN, one.what, why, remedy, one.site)
        # what stands in for something may bring them about; the lazy mode tells them
        if not (self.note.left_out and self.request.mode == "compile"):
            yield from counts.findings()
        for name in sorted(self._doubles):
            yield Finding(*_wide(name), maker_of(training.loaders[0], name))
        yield from _weights(training.runner.session.step_module)
        traced = list(self._log.findings()) if self.request.mode == "compile" else []
        yield from traced
        # BatchShapes looks at what batches of many shapes bring about
        if len(self._shapes) == 1 and RECOMPILATION not in {one.kind for one in traced}:
            yield from counts.compiled_again()
        self.note.fact("launches an update", counts.launches)
        peak = adapter.stats().get("peak_mib", 0.0)
        self.note.fact("peak MiB", round(peak, 1))
        yield from self._beyond(training, int(peak * 2**20))

    def _beyond(self, training: Training, peak: int) -> Iterator[Finding]:
        """The memory of the config's own batch, by that of the smaller one here."""
        size, limit, runner = self._size, self.request.memory, training.runner
        if size is None or limit is None:
            return
        weights = list(runner.model.parameters())
        states = tensors_in([dict(o.state) for o in optimizers_in(runner.optimizer)])
        kept = min(sum(map(nbytes, (*weights, *weights, *states))), peak)
        times = size.samples / min(size.samples, self.request.samples)
        need = kept + int((peak - kept) * times)
        if need > limit:
            why = f"it needs about {size_text(need)}; there are {size_text(limit)}"
            what = f"{size.key}: {size.samples}"
            yield Finding("breaks", "memory", what, why, LESS, size.site)


def _weights(step: StepModule) -> Iterator[Finding]:
    """What model and loss hold in float64, by the line that makes it."""
    held: dict[str | None, list[str]] = {}
    loss = step.loss if isinstance(step.loss, nn.Module) else nn.Module()
    parts = chain(step.model.named_modules(), loss.named_modules(prefix="loss"))
    for path, owner in parts:
        for name, tensor in (*owner._parameters.items(), *owner._buffers.items()):
            if tensor is not None and tensor.dtype is torch.float64:
                site = assigned(type(owner), name)[0]
                held.setdefault(site, []).append(f"{path}.{name}".lstrip("."))
    for site, names in held.items():
        what = ", ".join(names[:3]) + (", ..." if names[3:] else "")
        yield Finding(*_wide(what), site)


def _wide(what: str) -> tuple[str, str, str, str, str]:
    severity, why = MEANS[WIDE]
    return severity, WIDE, what, why, _FLOAT
