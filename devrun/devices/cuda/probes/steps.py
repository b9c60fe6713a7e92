"""`Steps`: the updates of the rehearsal, as CUDA would do them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from traceback import walk_stack
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch.nn.utils import clip_grad

from devrun.config.tree import inside
from devrun.devices.cuda.probes.kernels import Deterministic, WholeProducts, Widened
from devrun.devices.cuda.probes.mismatches import Mismatches, tag_host
from devrun.devices.cuda.probes.syncs import Syncs, clipping
from devrun.devices.cuda.probes.watch import Calls, Judge, Op, Operators
from devrun.devices.device_section import option_place
from devrun.devices.options import IndexedOptions, parse_options
from devrun.errors import ConfigError
from devrun.hooks.base import Priority
from devrun.probes.finding import Finding
from devrun.probes.hosted import engine_in
from devrun.probes.keys import asked_of, line_of
from devrun.probes.notebook import Notebook
from devrun.probes.origins import DEVICE, PLACED
from devrun.probes.probe import Probe, Training, Watching, own_parts
from devrun.probes.request import Request
from devrun.probes.sites import line_asking
from devrun.probes.workarounds import refusal
from devrun.run import Run
from devrun.tensors import map_tensors

_REFUSED = "binary_cross_entropy"
"""The one that CUDA's table bans; what else is unsafe there is computed in fp32."""
_WHY = "CUDA's autocast raises for it: log of a rounded probability is not safe"
_LOGITS = "torch.nn.functional.binary_cross_entropy_with_logits(logits, target)"


class Steps(Probe):
    """What each operator of an update would meet on CUDA, as the judges see it."""

    priority = Priority.HIGHEST

    def __init__(self, request: Request, note: Notebook) -> None:
        super().__init__(request, note)
        self.origins = PLACED
        self.syncs = Syncs(self.origins, self.updating)
        self.precision = Precision()
        self._deterministic = Deterministic()
        self.judges: list[Judge] = [
            self.syncs,
            Mismatches(self.origins, self.updating),
            WholeProducts(),
            self._deterministic,
            self.precision,
        ]
        self.updates = 0
        self.active = False
        """Whether an update is being done, with the hooks before and after it."""
        self._runner: Any = None

    def before(self, cfg: Any) -> None:
        asked = asked_of(cfg, self.request.device)
        try:  # the updates run on a CPU, which has other options
            parse_options(IndexedOptions, asked, self.request.device)
        except ConfigError as error:
            error.locate(option_place(cfg, self.request.device, error.key or ""))
            self.note.found(refusal(error))
        key = "optimizer_config.grad_clip.error_if_nonfinite"
        if inside(cfg, key):
            self.note.found(clipping(line_of(cfg, key)))
        self.precision.loss_site = line_of(cfg, "loss")

    def built(self, training: Training) -> None:
        runner = training.runner
        self._runner = runner
        tag_host(runner.session.step_module, own_parts(runner), self.origins)
        adapter: Any = runner.adapter
        # the host reads no number for nothing there: log_vars has tensors
        adapter.host_shared = False
        move = adapter.to_device
        adapter.to_device = lambda batch: self.copied(move(batch))
        runner.register_hook(self)
        runner.register_hook(_Ends(self))

    def throughout(self) -> AbstractContextManager[Any]:
        return self._deterministic.asked()

    def getting_past(self) -> AbstractContextManager[Any]:
        return Widened()

    @contextmanager
    def watching(self) -> Iterator[None]:
        calls = Calls(self.origins, self.judges)
        with ExitStack() as stack:
            for name in ("save", "from_numpy"):
                told = calls.through(getattr(torch, name))
                stack.enter_context(patch.object(torch, name, told))
            for name in ("synchronize", "empty_cache"):
                waits = partial(self._synchronized, name)
                stack.enter_context(patch.object(torch.cuda, name, waits))
            for name in ("scale", "unscale_", "step"):
                stack.enter_context(self.precision.seen(name))
            stack.enter_context(engine_in(calls.again))
            stack.enter_context(Operators(self.origins, calls, self.judges))
            stack.enter_context(calls)
            yield

    def after(self, _: Any) -> Iterator[Finding]:
        for judge in self.judges if self.updates else ():
            yield from judge.findings(self.updates)

    def _synchronized(self, name: str, *_: Any) -> None:
        self.syncs.leaves(name)

    def copied(self, batch: Any) -> Any:
        """`batch` as the copy to the device would give it: other tensors, tagged."""

        def copy(tensor: Tensor) -> Tensor:
            made = tensor.clone()
            self.origins.tag(made, DEVICE)
            return made

        return map_tensors(copy, batch)

    def updating(self) -> int:
        """Number of the update that is done; 0: none, as in an evaluation, which may
        read what it likes."""
        return self._runner.session.wrapped.training and self.active * self.updates

    def before_run(self, runner: Run) -> None:
        guard = self._runner.adapter.update.guard
        if guard is not None:  # later, the weights are no numbers either
            guard.immediate = True
        whole = self._runner.session.step_module
        for tensor in (*whole.parameters(), *whole.buffers()):
            self.origins.tag(tensor, DEVICE)

    def before_train_iter(self, runner: Run) -> None:
        self.active = True
        self.updates += 1
        self.origins.sweep()
        self.before_run(runner)
        runner.data_batch = self.copied(runner.data_batch)


class _Ends(Watching):
    """Behind all other hooks, which are part of an update too."""

    priority = Priority.LOWEST

    def __init__(self, steps: Steps) -> None:
        self._steps = steps

    def after_train_iter(self, runner: Run) -> None:
        self._steps.active = False
        if self._steps.updates > 1:  # what waits once only is none
            for finding in self._steps.after(runner):
                self._steps.note.found(finding)


class Precision(Judge):
    """Notes a binary cross entropy of probabilities, which half precision rounds, and
    gradients that are clipped before a scaler of the user's has divided them."""

    loss_site: str | None = None
    """Where the config names its loss."""
    _scaled = False

    def seen(self, name: str) -> AbstractContextManager[Any]:
        """Within, calls of the method `name` of a scaler are seen."""
        given = getattr(torch.amp.GradScaler, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            self._scaled = name == "scale"
            return given(*args, **kwargs)

        return patch.object(torch.amp.GradScaler, name, call)

    def operator(self, op: Op) -> None:
        calls = walk_stack(None) if self._scaled else ()
        if any(frame.f_code.co_filename == clip_grad.__file__ for frame, _ in calls):
            self._scaled = False  # once an update
            why = "the scaler has multiplied them: all are far above the limit"
            remedy = "scaler.unscale_(optimizer) before it"
            row = ("differs", "gradients", "clipped", why, remedy, line_asking())
            self.counts[row] += 1
        if op.name != _REFUSED or not op.autocast:
            return
        site, remedy = line_asking(), f"{_LOGITS}, without the sigmoid"
        if site is None and self.loss_site is not None:
            remedy = "loss: {type: BCEWithLogitsLoss}, and a model without sigmoid"
        row = ("breaks", "autocast", _REFUSED, _WHY, remedy, site or self.loss_site)
        self.counts[row] += 1
