"""`CapturedUpdate`: whole updates replayed as one graph of the device.

A small model's step takes as long as Python takes to launch it. A graph (of CUDA, or of
a Gaudi in lazy mode) launches at once what it holds: forward and backward of each
micro-batch, clipping and, where the optimizer can, its step. Python does not run again.
So an update that needs Python is not captured, the first replay has to give what the
same update gave without a graph, and what a graph cannot see change (shapes, addresses,
attributes of modules, hyper-parameters) is compared before each replay.

https://docs.pytorch.org/docs/stable/notes/cuda.html#cuda-graphs
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from devrun.devices.frozen import CaptureWatch
from devrun.devices.held import PLAIN, Held, Rates, hooks_of, label
from devrun.devices.snapshot import Snapshot
from devrun.devices.trial import GraphTrial
from devrun.devices.update import Update
from devrun.errors import DevrunError, UnsupportedFeatureError
from devrun.step import StepOutput
from devrun.tensors import INSIDE, map_tensors, named_tensors, replaced, tensors_in
from devrun.text import joined

OnGrads = Callable[[], None] | None

WARM = 3
"""Updates of each shape that run without a graph first: libraries choose their kernels
in them, and optimizers make their state."""
MOST = 8
"""Graphs at a time. Batches of further shapes run without one."""
OUTSIDE = 3
"""Captures because something changed, after which the step is left out of them."""
AGAIN = 16
"""Captures because something changed, after which that is taken to go on for ever."""

logger = logging.getLogger("devrun")


class Graphs(Protocol):
    """What a device has to have for it."""

    waits: str | None
    """What in the last work done `aside` made the host wait, if that is known."""

    def aside(self) -> AbstractContextManager[Any]:
        """Where the last update before a capture runs, on a stream like a capture's."""

    def capture(self, work: Callable[[], Any]) -> tuple[Callable[[], None], Any]:
        """(what replays `work`, what `work` returned); it may run or not."""

    def free(self) -> None:
        """No graph of it is left."""


@dataclass
class Recording:
    """A graph, with what goes in and comes out."""

    replay: Callable[[], None]
    inputs: list[Tensor]
    outputs: StepOutput
    grads: list[tuple[Tensor, Tensor]]
    steps: bool
    """Whether the optimizer's step is in it."""
    held: Held


class CapturedUpdate:
    """Does updates from graphs, one for each shape of batch.

    Args:
        adapter: whose random state and name are used.
        required: an update that cannot be captured is an error; else it is logged, and
            the run goes on without graphs.
    """

    def __init__(
        self,
        graphs: Graphs,
        update: Update,
        module: nn.Module,
        adapter: Any,
        *,
        required: bool,
    ) -> None:
        self.on = True
        self.refused = False
        """It runs without graphs from here on, which was logged."""
        self._graphs, self._update, self._module = graphs, update, module
        self._adapter, self._required = adapter, required
        self._recordings: dict[Any, Recording] = {}
        self._warm: dict[Any, int] = {}
        self._rates = Rates()
        self._again = 0
        self._full = False

    @property
    def captured(self) -> int:
        """Shapes that have a graph now."""
        return len(self._recordings)

    def __call__(
        self, model: Any, batch: Any, optimizer: Any, on_grads: OnGrads
    ) -> StepOutput | None:
        """The update of `batch`, from a graph as soon as there is one.

        None where graphs are not used, or not any more: nothing was done.
        """
        if self.on and not self.refused and not self._warm:
            if why := obstacle(self._update, self._module, optimizer, on_grads):
                self.refuse(why)
        if not self.on or self.refused:
            if self._recordings:
                self.free()
            return None
        key = _form(batch)
        recording = self._recordings.get(key)
        if recording is None and not self._is_due(key):
            return self._plain(model, batch, optimizer)
        if recording is not None and self._still_holds(recording):
            self._replay(recording, batch)
            if not recording.steps:
                optimizer.step()
            return self._judged(recording.outputs)
        return self._capture(key, model, batch, optimizer)

    def free(self) -> None:
        """Give the memory of all graphs back."""
        self._recordings.clear()
        self._graphs.free()

    def _is_due(self, key: Any) -> bool:
        """Whether a batch of this form is to be captured now."""
        count = self._warm[key] = self._warm.get(key, 0) + 1
        if len(self._warm) > 16 * MOST:
            self.refuse("batches come in too many forms: pad them, see docs/bucketing")
        if count <= WARM or self.refused:
            return False
        if self.captured == MOST and not self._full:
            self._full = True
            logger.warning(
                "%s: batches of more than %d shapes: the further ones run without a "
                "graph; pad batches to few shapes",
                self._adapter.name,
                MOST,
            )
        return not self._full

    def _still_holds(self, recording: Recording) -> bool:
        change = recording.held.change()
        if change is None:
            return True
        self._again += 1
        if self._again == OUTSIDE:  # a schedule of momentum, say
            self._rates.outside = True
        if self._again > AGAIN:
            self.refuse(f"{change} keeps changing, which a graph does not see")
        else:
            logger.info("%s: captured again: %s", self._adapter.name, change)
        return False

    def _plain(self, model: Any, batch: Any, optimizer: Any) -> StepOutput:
        """Without a graph, with the same bits."""
        with self._rates.of(optimizer):
            return _whole(self._update, model, batch, optimizer)

    def _replay(self, recording: Recording, batch: Any) -> None:
        for static, given in zip(recording.inputs, tensors_in(batch), strict=True):
            static.copy_(given, non_blocking=True)
        self._rates.fill()
        for param, grad in recording.grads:  # somebody may have set them to None
            param.grad = grad
        recording.replay()

    def _judged(self, outputs: StepOutput) -> StepOutput:
        """Outputs of a replay, out of the memory of the next one."""
        outputs = StepOutput(map_tensors(Tensor.clone, outputs))
        guard, log_vars = self._update.guard, outputs["log_vars"]
        if guard is not None:
            guard.blocks(outputs["loss"])
            if "grad_norm" in log_vars:
                guard.blocks_norm(log_vars["grad_norm"])
        return outputs

    def _capture(self, key: Any, model: Any, batch: Any, optimizer: Any) -> StepOutput:
        """An update without a graph; then the same captured, to see that both agree."""
        self._recordings.pop(key, None)
        if not self.refused and (
            why := obstacle(self._update, self._module, optimizer)
        ):
            self.refuse(why)
        if self.refused:
            return self._plain(model, batch, optimizer)
        before = self._snapshot(optimizer)
        with self._graphs.aside(), self._watch() as watch:
            outputs = self._plain(model, batch, optimizer)
        for finding in watch.findings:
            at = f" at {finding.site}" if finding.site else ""
            self.refuse(f"the forward pass {finding.what}{at}, in Python")
            return outputs
        if self._graphs.waits is not None:
            self.refuse(f"it waits for the device: {self._graphs.waits}")
            return outputs
        after = self._snapshot(optimizer)
        if len(before.values) != len(after.values):  # a state was made meanwhile
            return outputs
        found = (outputs, _grads(optimizer), after.values)
        found = map_tensors(Tensor.clone, found[:2]) + found[2:]
        try:
            before.put_back()
            recording = self._record(model, batch, optimizer)
            before.put_back()
            self._replay(recording, batch)
            mine = (
                recording.outputs,
                _grads(optimizer),
                self._snapshot(optimizer).values,
            )
            checked = slice(None if recording.steps else 2)
            if differs := _difference(found[checked], mine[checked]):
                self.refuse(f"the first replay gave another {differs}")
            else:
                self._recordings[key] = recording
        except (RuntimeError, AssertionError) as error:
            if isinstance(error, DevrunError):
                raise
            self.refuse(joined(error), error)
        finally:
            after.put_back()
        return outputs

    def _watch(self) -> CaptureWatch:
        # a tracer of lines is in the way of the compiler
        lines = not self._adapter.options.compile
        return CaptureWatch(self._module, lines=lines, host_torch=True)

    def _record(self, model: Any, batch: Any, optimizer: Any) -> Recording:
        static, update = map_tensors(Tensor.clone, batch), self._update
        aside = ("guard", "unreached", "after_backward")  # which are Python
        kept = {name: getattr(update, name) for name in aside}
        vars(update).update(dict.fromkeys(aside))
        try:
            with self._rates.of(optimizer, capturing=True):
                step = self._rates.in_graph
                replay, outputs = self._graphs.capture(
                    lambda: _whole(update, model, static, optimizer, step=step)
                )
        finally:
            vars(update).update(kept)
        return Recording(
            replay,
            list(tensors_in(static)),
            outputs,
            [
                (param, param.grad)
                for param in _params(optimizer)
                if param.grad is not None
            ],
            step,
            Held(self._module, optimizer if step else None),
        )

    def _snapshot(self, optimizer: Any) -> Snapshot:
        """Of what an update changes."""
        kept = [*self._module.parameters(), *self._module.buffers()]
        kept += tensors_in(list(optimizer.state.values()))
        return Snapshot(kept, self._adapter)

    def refuse(self, why: str, cause: Exception | None = None) -> None:
        """Use no graphs from here on, for the reason `why`.

        Raises:
            UnsupportedFeatureError: they are required.
        """
        self.refused = True
        self.free()
        name = self._adapter.name
        if self._required:
            raise UnsupportedFeatureError(
                f"option 'graphs' of device {name!r}: an update cannot be one graph: "
                f"{why}; change that, or leave graphs out",
                key="graphs",
            ) from cause
        logger.warning("%s: updates run without graphs: %s", name, why)


def obstacle(
    update: Update, module: nn.Module, optimizer: Any, on_grads: OnGrads = None
) -> str | None:
    """Why no update of a run can be captured, as far as its settings show."""
    guard = update.guard
    if on_grads is not None:
        return "a hook overrides after_backward, which is in no graph"
    if update.closure:
        return "the optimizer evaluates the loss itself (LBFGS)"
    if update.world > 1:
        return "several processes exchange their gradients in it"
    if update.scaler is not None:
        return "fp16 reads in each update whether gradients overflowed; use bf16"
    if guard is not None and guard.immediate:
        return "nonfinite or spike 'skip' reads the loss before the update"
    if update.splitter is not None:
        return "micro_batch divides batches by the room that is left"
    if isinstance(optimizer, Mapping):
        return "there are several optimizers"
    for name, part in module.named_modules():
        if any(hooks_of(part)):
            return f"{label(name, part)} has hooks, which are Python"
    return None


def _whole(
    update: Update, model: Any, batch: Any, optimizer: Any, *, step: bool = True
) -> StepOutput:
    """As `EagerAdapter.train_step`, less what `obstacle` refuses."""
    outputs = update.gradients(model, batch, optimizer)
    if update.may_step(model, outputs, optimizer, None) and step:
        optimizer.step()
    return outputs


def capture_updates(
    graphs: Graphs, update: Update, module: nn.Module, adapter: Any, setting: Any
) -> None:
    """Do `update` from graphs: always (True), or if that is faster (`auto`).

    Raises:
        UnsupportedFeatureError: they are asked for, and the optimizer evaluates the
            loss itself.
    """
    required = setting != "auto"
    captured = CapturedUpdate(graphs, update, module, adapter, required=required)
    if update.closure and (why := obstacle(update, module, None)):
        captured.refuse(why)
        return
    update.instead = captured
    if not required:
        GraphTrial(adapter.name, captured, adapter.synchronize).attach(update)


def _form(batch: Any) -> Any:
    """What batches of one graph have in common; a key."""
    form: list[Any] = []

    def note(part: Any, path: str) -> Any:
        if isinstance(part, Tensor):
            form.append((path, part.shape, part.stride(), part.dtype))
            return part
        form.append((path, part if isinstance(part, PLAIN) else type(part)))
        return INSIDE

    replaced(note, batch)
    return tuple(form)


def _params(optimizer: Any) -> list[Tensor]:
    return [param for group in optimizer.param_groups for param in group["params"]]


def _grads(optimizer: Any) -> list[Tensor]:
    return [param.grad for param in _params(optimizer) if param.grad is not None]


def _difference(plain: Any, replayed: Any) -> str | None:
    """The first value that differs by more than another order of a sum explains."""
    ours, theirs = list(named_tensors(plain)), list(named_tensors(replayed))
    if len(ours) != len(theirs):
        return "number of outputs and gradients"
    for (path, one), (_, other) in zip(ours, theirs, strict=True):
        close = torch.allclose(
            one.double(), other.double(), rtol=1e-3, atol=1e-5, equal_nan=True
        )
        if not close:
            return f"value of {path}"
    return None
