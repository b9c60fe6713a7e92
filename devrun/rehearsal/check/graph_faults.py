"""Faults of the graph of gradients: kept over updates, changed, without weights."""

from __future__ import annotations

import inspect
import re
import sys
import traceback
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from types import CodeType
from typing import Any
from unittest.mock import patch

from torch import Tensor, nn
from torch.autograd import anomaly_mode
from torch.autograd.graph import saved_tensors_hooks
from torch.nn.modules import module as modules
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.overrides import TorchFunctionMode

from devrun.hooks.base import Priority
from devrun.probes import sites
from devrun.probes.births import attributes, keepers
from devrun.probes.finding import Finding
from devrun.probes.notebook import Notebook
from devrun.probes.probe import Probe, Training, own_parts
from devrun.probes.sources import bounded, made_at, stored
from devrun.rehearsal.check.gradient_path import BACKWARD, run_again
from devrun.run import Run
from devrun.step import Capability
from devrun.tensors import held, map_tensors, tensors_in

LATE = "late parameter"
_IN_PLACE = re.compile("modified by an inplace operation|in-place operation")
_AGAIN = re.compile("backward through the graph a second time")
_TENSOR, _GRAPH = "a tensor", "one graph"
_GROWN = (
    "it grows with every update, and each tensor in it keeps what its backward pass "
    "needed: memory runs out",
    "keep x.detach() there, and no more of them than are read",
)
_MORE = (
    "it has one more tensor after every update, and nothing takes any out of it: "
    "memory runs out",
    "collections.deque(maxlen=...) of them, or what is computed of each",
)
_RETAIN = (
    "one pass through the sum of the losses, or retain_graph=True in all but the last"
)
_AFTER = "made after the optimizer, it is not trained; a resume finds no place for it"
_ANOMALY = (
    "each operator keeps its stack, and each gradient is looked at for a NaN",
    "leave it out once the NaN is found; --detect-anomaly does it for one run",
)
_EVALUATION = (
    "updates go on so: dropout is off, and batch norms learn no statistics",
    "model.train() behind what is done in evaluation mode",
)
_GROWS, _LOOKS = 3, 10
"""Updates over which what is kept must grow, of so many of a program's loop."""


def backward_faults(
    error: Exception, training: Any, batch: Any, known: Collection[str]
) -> list[Finding]:
    """What ended a backward pass, at lines of the forward pass; none: another.

    Args:
        known: what was found to be kept before.
    """
    why = str(error).strip().partition("\n")[0].partition("Hint")[0]
    if _IN_PLACE.search(why):
        remedy = "out of place: h = h * 2, not h *= 2; torch.where for a part of it"
        return [
            Finding("breaks", BACKWARD[0], _TENSOR, why, remedy, site)
            for site in _changed(training, batch) or [sites.of_error(error)]
        ]
    if _AGAIN.search(why):
        every = _kept(training.runner.session.step_module.modules())
        kept = next((one for one in every if f"self.{one[1]}" not in known), None)
        if kept is None:
            row = (_GRAPH, why, _RETAIN, sites.of_error(error))
            return [Finding("breaks", BACKWARD[1], *row)]
        name, site = f"self.{kept[1]}", stored(type(kept[0]), kept[1])
        remedy = f"keep {name} without its graph: .detach()"
        return [Finding("breaks", BACKWARD[1], name, why, remedy, site)]
    return []


@contextmanager
def repaired(
    mended: TorchFunctionMode, found: Collection[str], session: Any
) -> Iterator[None]:
    """Within `mended`, what is changed is copied before, and what is kept has no graph.

    Args:
        found: what ended a backward pass.
    """
    for owner, name, _ in list(_kept(session.step_module.modules()) if found else ()):
        if f"self.{name}" in found:
            setattr(owner, name, map_tensors(_leaf, getattr(owner, name)))
    copied = saved_tensors_hooks(Tensor.clone, lambda one: one)
    again = _Retained() if _GRAPH in found else nullcontext()
    with mended, again, copied if _TENSOR in found else nullcontext():
        yield


class _Retained(TorchFunctionMode):
    """Within, a backward pass leaves its graph to the next."""

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if "retain_graph" in kwargs:
            kwargs = {**kwargs, "retain_graph": True}
        try:
            return func(*args, **kwargs)
        except RuntimeError as error:  # weights that were updated between the passes
            if func is not Tensor.backward or not _IN_PLACE.search(str(error)):
                raise


def _leaf(tensor: Tensor) -> Tensor:
    """Without its graph, though it may be changed in place."""
    return tensor.detach().requires_grad_(tensor.requires_grad).clone()


def _changed(training: Any, batch: Any) -> list[str | None]:
    """The lines of changes that a backward pass of one more update comes upon."""
    changes = _Changes()
    hooks = saved_tensors_hooks(lambda one: (one, one._version), changes.needs)
    with suppress(Exception), hooks:  # of the user's model, called once more
        run_again(training, batch, changes).backward()
    return changes.sites


class _Changes(TorchFunctionMode):
    """Notes the lines of changes in place that a backward pass comes upon."""

    def __init__(self) -> None:
        super().__init__()
        self.sites: list[str | None] = []
        # the tensors themselves: the memory of one that is gone is another's next
        self._made: list[tuple[Tensor, int, str | None]] = []

    def needs(self, saved: tuple[Tensor, int]) -> Tensor:
        """A backward pass needs what was saved as the version that it was."""
        tensor, version = saved
        for one, after, site in self._made:
            if _place(one) == _place(tensor) and after > version:
                self.sites += [site] if site not in self.sites else []
                break
        return tensor

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        given = [(one, one._version) for one in tensors_in((args, kwargs or {}))]
        out = func(*args, **(kwargs or {}))
        for one, before in given:
            if one._version > before:
                self._made.append((one, one._version, sites.here(2)))
        return out


def _place(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _kept(owners: Iterable[Any]) -> Iterator[tuple[Any, str, set[Any]]]:
    """Owner, name and graph of attributes that hold tensors with one."""
    for owner, name, value in _values(owners):
        if nodes := _nodes(value):
            yield owner, name, nodes


def _values(owners: Iterable[Any]) -> Iterator[tuple[Any, str, Any]]:
    """Owner, name and value of attributes."""
    for owner in keepers(owners):
        own = attributes(owner) if hasattr(owner, "__dict__") else {}
        own = {**own, **getattr(owner, "_buffers", {})}
        yield from ((owner, name, value) for name, value in own.items())


def _nodes(value: Any) -> set[Any]:
    """Of the way from each of its tensors to its first source: a sum over updates goes
    through all of them."""
    found: set[Any] = set()
    for one in held(value):
        node = one.grad_fn
        while node is not None and node not in found:
            found.add(node)
            node = node.next_functions[0][0] if node.next_functions else None
    return found


class _Growing:
    """Notes what has all of the last update's graph or tensors at the next, and more.

    Numbers in tensors are small, and a variable of code is gone with it.
    """

    def __init__(self, note: Notebook, model: nn.Module | None = None) -> None:
        self._note = note
        self._model = model or nn.Module()
        self._seen: dict[Any, tuple[set[Any], int]] = {}

    def look(self, key: Any, owner: Any, name: str, value: Any) -> None:
        """At the value of an attribute, or of a variable of code, once an update."""
        kind, words, parts = "kept graph", _GROWN, _nodes(value)
        if not parts and isinstance(value, (list, dict)) and isinstance(owner, type):
            kind, words = "kept tensors", _MORE
            parts = {id(one) for one in held(value) if one.dim()}
        before, last = self._seen.get((key, name), (set(), 0))
        times = last + 1 if before < parts else 0
        self._seen[key, name] = parts, times
        if times == _GROWS and (words is _GROWN or not bounded(owner, name)):
            named = self._model.named_modules()  # one may be a library's, as a metric
            made = (made_at(self._model, path) for path, one in named if id(one) == key)
            site = stored(owner, name) or next(made, None)
            self._note.found(Finding("slow", kind, name, *words, site))


def kept_by_program(note: Notebook) -> Any:
    """Within, variables of a program that keep graphs are found, as of a model."""
    growing = _Growing(note)
    looks: Counter[CodeType] = Counter()

    def stepped(*_: Any) -> None:
        known: set[int] = set()  # what is given on is looked at where it was given to
        for frame, _line in traceback.walk_stack(sys._getframe(1)):
            code = frame.f_code
            looks[code] += 1  # in long lists a look takes long
            if looks[code] > _LOOKS or not sites.user_line([(code.co_filename, 1)]):
                continue
            own = frame.f_locals
            owner = sys.modules["__main__"] if own is frame.f_globals else code
            new = {name: one for name, one in own.items() if id(one) not in known}
            known.update(map(id, new.values()))
            for name, value in new.items():
                growing.look(code, owner, name, value)
            objects = [one for one in new.values() if sites.defined(type(one))]
            for one, name, value in _values(objects):
                growing.look((code, id(one)), type(one), name, value)

    return register_optimizer_step_post_hook(stepped)


class KeptGraphs(Probe):
    """Finds lists and sums of the model or loss that keep the graph of each update."""

    priority = Priority.LOWEST

    def built(self, training: Training) -> None:
        self._whole = training.runner.session.step_module
        self._growing = _Growing(self.note, self._whole)
        training.runner.register_hook(self)

    def after_train_iter(self, runner: Run) -> None:
        owners = own_parts(runner)
        # else the model's code runs once, and what it keeps does not grow
        if Capability.GRAD_ACCESS in runner.adapter.capabilities:
            owners += self._whole.modules()
        for owner, name, value in _values(owners):
            self._growing.look(id(owner), type(owner), name, value)


class AnomalyMode(Probe):
    """Finds where torch's anomaly mode is put on, which is for the search of a NaN."""

    @contextmanager
    def throughout(self) -> Iterator[None]:
        with ExitStack() as stack:
            for kind in (anomaly_mode.set_detect_anomaly, anomaly_mode.detect_anomaly):
                stack.enter_context(patch.object(kind, "__init__", self._told(kind)))
            yield

    def _told(self, kind: Any) -> Any:
        given = kind.__init__

        def begin(made: Any, *args: Any, **kwargs: Any) -> None:
            asked = inspect.signature(given).bind(made, *args, **kwargs).arguments
            site = sites.line_asking()
            if asked.get("mode", True) and asked.get("check_nan", True) and site:
                row = ("slow", "anomaly mode", kind.__name__, *_ANOMALY, site)
                self.note.found(Finding(*row))
            given(made, *args, **kwargs)

        return begin


class StaysEvaluating(Probe):
    """Finds who puts the model in evaluation mode and leaves it there."""

    def built(self, training: Training) -> None:
        self._model = training.runner.model
        self._sites: set[str | None] = set()
        """Lines since the model was last put in training mode."""
        training.runner.register_hook(self)

    @contextmanager
    def watching(self) -> Iterator[None]:
        given: Any = nn.Module.train

        def train(module: Any, mode: bool = True) -> Any:
            if module is self._model and mode:
                self._sites.clear()
            elif module is self._model and sys._getframe(1).f_code.co_name != "train":
                self._sites.add(sites.line_asking())  # who overrides `train` means it
            return given(module, mode)

        with patch.object(nn.Module, "train", train):
            yield

    def before_train_iter(self, runner: Run) -> None:
        for site in filter(None, self._sites):
            row = ("evaluation mode", "eval()", *_EVALUATION, site)
            self.note.found(Finding("differs", *row))


class LateParameters(Probe):
    """Finds parameters that the model makes in its updates: no optimizer has them."""

    def built(self, training: Training) -> None:
        self._model: nn.Module = training.runner.model

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Around the run, until which the model had time to make them."""
        parameters = modules.register_module_parameter_registration_hook(self._made)
        inner = modules.register_module_module_registration_hook(self._made)
        with parameters, inner:
            yield

    def _made(self, owner: nn.Module, name: str, made: Any) -> None:
        parts = made.parameters() if isinstance(made, nn.Module) else [made]
        trained = any(isinstance(one, Tensor) and one.requires_grad for one in parts)
        site = sites.line_asking()
        if not trained or site is None or owner not in set(self._model.modules()):
            return
        remedy = f"make self.{name} in __init__; nn.Lazy... where data give its size"
        self.note.found(Finding("breaks", LATE, name, _AFTER, remedy, site))
