"""`Compiles`: where `torch.compile` would break the graph."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch
from torch import nn

from devrun.devices.cuda.probes.options import asked_of
from devrun.probes.aside import aside
from devrun.probes.compile_log import CompileLog
from devrun.probes.finding import Finding
from devrun.probes.probe import Probe, Training

_FACT = "torch.compile"


class Compiles(Probe):
    """Has Dynamo explain the first call of the model, where the config compiles it."""

    _asked: Any = None
    _call: tuple[Any, Any] | None = None

    def before(self, cfg: Any) -> None:
        self._asked = asked_of(cfg, self.request.device).get("compile")

    def built(self, training: Training) -> None:
        self._call = None
        if not self._asked:
            return

        def called(model: nn.Module, args: Any, kwargs: Any) -> None:
            if self._call is None:
                self._call = args, kwargs

        model = training.runner.model
        self._handle = model.register_forward_pre_hook(called, with_kwargs=True)

    def after(self, training: Training) -> Iterator[Finding]:
        if not self._asked:
            return
        self._handle.remove()
        if self._call:
            runner = training.runner
            breaks = aside(partial(explained, runner.model, self._call, runner.adapter))
            self.note.fact(_FACT, {"graph breaks": len(breaks)})
            yield from breaks


def explained(model: nn.Module, call: Any, adapter: Any) -> list[Finding]:
    """Each break of the graph, in a process of its own."""
    import torch._dynamo as dynamo

    dynamo.reset()
    log, (args, kwargs) = CompileLog(), call
    with adapter.update.autocast or nullcontext():
        torch.compile(model, backend="eager")(*args, **kwargs)
    return list(log.findings())
