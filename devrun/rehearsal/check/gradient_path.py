"""Weights that no update trains, and where the way from them to the loss ends."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator
from contextlib import ExitStack, nullcontext, suppress
from dataclasses import replace
from functools import partial
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import _disable_current_modes

from devrun.errors import DivergedError
from devrun.models import steps
from devrun.probes import sites
from devrun.probes.births import attributes, hidden, keepers
from devrun.probes.finding import Finding
from devrun.probes.notebook import Notebook
from devrun.probes.probe import Probe, Training
from devrun.probes.sources import assigned, made_at
from devrun.probes.workarounds import refusal
from devrun.step import Capability, MicroBatches
from devrun.tensors import held, tensors_in

BACKWARD = ("changed in place", "backward again")
"""Kinds of what ends a backward pass."""
_IDLE = (
    "these parameters are to be trained, and no backward pass gives them a gradient",
    "freeze them (freeze: [pattern]), or use them in forward, and in your own backward",
)
_NO_NUMBER = re.compile(r"\b(nan|inf|infinity)\b", re.IGNORECASE)
_NAMED = 3
_TRAINED = "compute it of the weights that are to be trained, with lr above 0"
_BACKWARD = (
    "who goes backward in train_step also calls step() of the optimizer: nobody does",
    "leave backward() out, which every update does; or call optimizer.step() after it",
)
_USED = "_was_used"
"""Attribute of a gradient that a step took: its version then."""
_ADDED = (
    "they are added to those that an update took, which nobody set to zero",
    "zero_grad() of the optimizer before backward()",
)
_UNREGISTERED = (
    "the model does not know of these weights, as of what is in a list or dict: they "
    "get gradients, and are neither trained nor saved",
    "an nn.Parameter, or an nn.ModuleList, nn.ModuleDict or nn.ParameterList of them",
)


class _Ends(TorchFunctionMode):
    """Notes the line at which the way from weights ends, or goes on without them."""

    def __init__(self) -> None:
        super().__init__()
        self._sites: dict[int, tuple[Tensor, str | None]] = {}
        self.backward: str | None = None
        """The line that goes backward itself."""

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        given = list(tensors_in((args, kwargs)))
        if func is Tensor.backward:
            self.backward = sites.here(2)
        before = next(filter(None, map(self.site_of, given)), None)
        trained = any(one.requires_grad and not self.site_of(one) for one in given)
        site = sites.here(2) if trained or not given else before
        for tensor in tensors_in(out):
            if not (tensor.requires_grad and trained):
                self._sites[id(tensor)] = tensor, site
        return out

    def site_of(self, tensor: Any) -> str | None:
        return self._sites.get(id(tensor), (None, None))[1]


class _NotFinite(_Ends):
    """Notes the line at which numbers become infinite, or none; or their gradients."""

    gradient: str | None = None
    """The line whose gradients are the first that are not finite."""

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        out, site = func(*args, **(kwargs or {})), sites.here(2)
        for tensor in tensors_in(out):
            self._watch(tensor.grad_fn, site)
            if not _finite([tensor]):
                known = filter(None, map(self.site_of, tensors_in((args, kwargs))))
                self._sites[id(tensor)] = tensor, next(known, site)
        return out

    def _watch(self, node: Any, site: str | None) -> None:
        """See the gradients that `node` makes, and each before it that is new."""
        todo = [node]
        while todo:
            one = todo.pop()
            if one is not None and self not in one.metadata:
                one.metadata[self] = site
                one.register_hook(partial(self._passed, site))
                todo += [before for before, _ in one.next_functions]

    def _passed(self, site: str | None, made: Any, given: Any) -> None:
        if self.gradient is None and _finite(given) and not _finite(made):
            self.gradient = site


def _finite(tensors: Iterable[Tensor | None]) -> bool:
    with torch._C.DisableTorchFunction(), _disable_current_modes():
        real = (one for one in tensors if one is not None and not one.is_sparse)
        return all(bool(one.isfinite().all()) for one in real)


class Diverges(Probe):
    """Finds the line of what makes a loss infinite, or none, in a run that goes on."""

    _said: Any = None
    _ends: _NotFinite | None = None

    def work_around(self, error: Exception, cfg: Any) -> dict[str, Any] | None:
        if not isinstance(error, DivergedError):
            return None
        self._said = None if self.note.left_out else refusal(error)
        return {"optimizer_config.nonfinite": "ignore"}

    def follows(self, error: Exception) -> bool:
        return self._said is not None and _NO_NUMBER.search(str(error)) is not None

    def built(self, training: Training) -> None:
        if self._said:
            training.runner.register_hook(self)
            if Capability.GRAD_ACCESS in training.runner.adapter.capabilities:
                self._ends = _NotFinite()

    def watching(self) -> Any:
        return self._ends or nullcontext()

    def after_train_iter(self, runner: Any) -> None:
        if self._ends and not self._said.site:
            at = self._ends.site_of(runner.outputs["loss"]) or self._ends.gradient
            self._said = replace(self._said, site=at)

    def after_run(self, runner: Any) -> None:
        self.note.found(self._said)


def untrained(note: Notebook, training: Any, batch: Any) -> None:
    """Note an update that trains nothing, at the line that ends the gradient's way."""
    ends, remedy, site = _Ends(), _TRAINED, None
    with suppress(Exception):  # of the user's model, called once more
        site = ends.site_of(run_again(training, batch, ends))
    why = "no weight takes part in it, so that an update changes none"
    if site:
        remedy = "take out the detach(), item(), argmax or no_grad() there"
    elif ends.backward:
        site, (why, remedy) = ends.backward, _BACKWARD
    note.found(Finding("breaks", "no gradient", "the loss", why, remedy, site))


def not_finite_at(training: Any, batch: Any) -> str | None:
    """The line of what makes the loss of `batch` infinite, or none."""
    ends = _NotFinite()
    with suppress(Exception):  # of the user's model, called once more
        return ends.site_of(run_again(training, batch, ends))
    return None


def run_again(training: Any, batch: Any, mode: TorchFunctionMode) -> Tensor:
    """The loss of `batch`, computed once more under `mode` by the model uncompiled."""
    adapter: Any = training.runner.adapter
    step: Any = training.runner.session.step_module
    first = batch[0] if isinstance(batch, MicroBatches) else batch
    if hasattr(adapter, "to_device"):  # else the model is on the host too
        first = adapter.to_device(first)
    with ExitStack() as stack:
        stack.enter_context(patch.object(steps, "check_gradient", lambda *_: None))
        for module in step.modules():
            if getattr(module, "_compiled_call_impl", None) is not None:
                stack.enter_context(patch.object(module, "_compiled_call_impl", None))
        stack.enter_context(torch.random.fork_rng(devices=[]))
        stack.enter_context(mode)
        loss: Tensor = step.run(step, first, "train")["loss"]
        return loss


class GradientsProbe(Probe):
    """Finds parameters that never get a gradient, or one of an update before it."""

    def built(self, training: Training) -> None:
        self._hidden = list(_unregistered(training.runner.model))
        self._seen: dict[str, bool] = {}
        self._added: dict[Tensor, str | None] = {}
        """Parameter -> where a gradient was added to one that a step took."""
        every = training.runner.model.named_parameters()
        # one that is frozen may be set free by a hook later, for what comes after
        self._trained = {name: one for name, one in every if one.requires_grad}
        if Capability.GRAD_ACCESS in training.runner.adapter.capabilities:
            for name, parameter in self._trained.items():
                parameter.register_hook(partial(self._saw, name, parameter))

    def watching(self) -> Any:
        """Around the run, to see each step of any optimizer."""
        return register_optimizer_step_post_hook(self._stepped)

    def _saw(self, name: str, parameter: Tensor, given: Tensor | None) -> None:
        self._seen[name] = self._seen.get(name, False) or given is not None
        if given is None:  # of a backward pass of the user's own
            return
        self._added.pop(parameter, None)
        grad = parameter.grad
        if grad is not None and getattr(grad, _USED, None) == grad._version:
            with torch._C.DisableTorchFunction(), _disable_current_modes():
                if grad.norm():  # else it was set to zero by its `data`
                    setattr(grad, _USED, grad._version + 1)
                    self._added[parameter] = sites.here(2)

    def _stepped(self, optimizer: Any, *_: Any) -> None:
        every = (one for group in optimizer.param_groups for one in group["params"])
        for one in (one for one in every if one.grad is not None):
            if site := self._added.get(one):
                row = ("gradients", "added up", *_ADDED, site)
                self.note.found(Finding("differs", *row))
            setattr(one.grad, _USED, one.grad._version)

    def after(self, training: Training) -> Iterator[Finding]:
        for finding, weights in self._hidden:
            if any(one.grad is not None for one in weights):
                yield finding
        every = self._trained.items()
        idle = [n for n, one in every if one.requires_grad and not self._seen.get(n)]
        if self.note.left_out or not (idle and any(self._seen.values())):
            return
        by_line: dict[str | None, list[str]] = {}
        for name in idle:
            whole = name if name in self._seen else _whole(name, self._trained, idle)
            line = made_at(training.runner.model, whole)
            by_line.setdefault(line, []).append(name)
        for site, names in by_line.items():
            more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
            row = ("no gradient", ", ".join(names[:_NAMED]) + more, *_IDLE, site)
            yield Finding("advice", *row, fix={"freeze": names})


def _whole(name: str, every: Iterable[str], idle: Collection[str]) -> str:
    """The outermost module with `name` of which nothing is trained, or `name`."""
    for at in (i for i, letter in enumerate(name) if letter == "."):
        if all(one in idle for one in every if one.startswith(name[: at + 1])):
            return name[:at]
    return name


def _unregistered(model: nn.Module) -> Iterator[tuple[Finding, list[Tensor]]]:
    """Weights that the modules hold and do not know of, and what is to be said."""
    known = {id(parameter) for parameter in model.parameters()}
    for owner in keepers(model.modules()):
        for name, value in attributes(owner).items():
            own = (one for one in (*held(value), *hidden(value)) if one.is_leaf)
            weights = [w for w in own if w.requires_grad and id(w) not in known]
            if weights:
                row = (f"{type(owner).__name__}.{name}", *_UNREGISTERED)
                site = assigned(type(owner), name)[0]
                yield Finding("breaks", "not registered", *row, site), weights
