"""Whether a run that resumes does what the first would have done."""

from __future__ import annotations

import hashlib
import sys
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Union

import torch
from torch import Tensor
from torch.optim import Optimizer

from devrun.hooks.base import Priority
from devrun.probes.births import hidden
from devrun.probes.finding import Finding
from devrun.probes.probe import Watching, is_ours
from devrun.probes.sites import defined
from devrun.probes.sources import assigned
from devrun.run import Run
from devrun.runners.training import Training
from devrun.tensors import held, tensors_in

_SOURCES = ("Generator", "Random", "RandomState", "cycle")
"""Names of classes of torch's, numpy's and Python's that give a value once."""
_OPTIMIZER = (
    "optimizer: {NAME: {type: ...}} in the config, which makes and saves it, and gives "
    "it to train_step as optimizer['NAME']"
)
Owner = Union[type, ModuleType]
"""A class, or a file, of which there are attributes."""


@dataclass(frozen=True)
class Update:
    """What went into one update, and its loss, as digests that can be compared."""

    weights: str
    batch: str
    loss: str


class Updates(Watching):
    """Notes each update of a run by its number, and saves in the middle of the run."""

    priority = Priority.LOWEST

    def __init__(self) -> None:
        self.by_number: dict[int, Update] = {}
        self.saved: str | None = None
        """The checkpoint that was taken in the middle."""
        self._weights = self._batch = ""
        self._trained: set[str] = set()
        """Digests of the weights before each update."""
        self.batch: Any = None
        """The last one."""
        self._first: dict[tuple[Owner, str], Any] | None = None
        self.changed: list[tuple[Owner, str]] = []
        """Class and name of attributes that were changed until the save."""

    @property
    def trains_nothing(self) -> bool:
        """Whether no update changed a weight, nor may have left it out."""
        return len(self._trained) == 1 < len(self.by_number) and not self._scales

    def before_train_iter(self, runner: Run) -> None:
        if self._first is None:
            self._first = _plain(runner)
            update = getattr(runner.adapter, "update", None)
            self._scales = getattr(update, "scaler", None) is not None
        runner.adapter.sync_to_host(runner.model)
        weights, state = (
            dict(runner.model.named_parameters()),
            runner.model.state_dict(),
        )
        trained = _digest(weights)
        self._trained.add(trained)
        self.batch = runner.data_batch
        rest = {key: value for key, value in state.items() if key not in weights}
        self._weights = trained + _digest(rest)
        self._batch = _digest(runner.data_batch)

    def after_train_iter(self, runner: Run) -> None:
        loss = _digest(runner.outputs.get("loss"))
        self.by_number[runner.iter] = Update(self._weights, self._batch, loss)
        if (
            not runner.state.by_epoch
            and runner.iter + 1 == (runner.max_iters or 0) // 2
        ):
            self._save(runner)

    def after_train_epoch(self, runner: Run) -> None:
        if runner.state.by_epoch and runner.epoch == 0:
            self._save(runner)

    def _save(self, runner: Run) -> None:
        now, before = _plain(runner), self._first or {}
        sources = [key for key, value in now.items() if value is None]
        known = [k for k, v in now.items() if v is not None and before.get(k, v) != v]
        new = (key for key in now if key not in before)
        self.changed = [*sources, *known, *new]
        self.saved = runner.save_checkpoint(name="middle")


def _plain(runner: Run) -> dict[tuple[Owner, str], Any]:
    """Numbers and tensors that no checkpoint has, of model, hooks and data set.

    By class or file and name; None in place of a source of random numbers.
    """
    loader: Any = runner.data_loader
    dataset = getattr(loader, "dataset", None)
    hooks = [one for one in runner.hooks if not is_ours(one)]
    found: dict[tuple[Owner, str], Any] = {}
    owners = (*runner.model.modules(), *hooks, dataset)
    for owner in owners:
        unsaved = getattr(owner, "_non_persistent_buffers_set", ())
        buffers = {name: getattr(owner, name) for name in unsaved}
        for name, value in {**getattr(owner, "__dict__", {}), **buffers}.items():
            if type(value).__name__ in _SOURCES:
                found[type(owner), name] = None
            elif isinstance(value, Optimizer):
                found[type(owner), name] = _digest(dict(value.state))
            elif tensors := [*held(value), *hidden(value)]:
                found[type(owner), name] = _digest(tensors)
            elif isinstance(value, (int, float, list, deque)):
                found[type(owner), name] = repr(value)
    # a class that a program executes may be of no file that is loaded
    files = {sys.modules.get(type(owner).__module__) for owner in owners}
    for file in filter(None, files):
        globals_ = vars(file).items()
        known = (name for name, one in globals_ if type(one).__name__ in _SOURCES)
        found.update({(file, name): None for name in known})
    return found


def _digest(value: Any) -> str:
    found = hashlib.sha256()
    for tensor in tensors_in(value):
        host = tensor.detach().to("cpu")
        if type(host) is not Tensor:
            continue  # it has no value outside of the graph that was captured
        host = (host if host.layout is torch.strided else host.to_dense()).contiguous()
        found.update(str((tuple(host.shape), host.dtype)).encode())
        found.update(host.reshape(-1).view(torch.uint8).numpy().tobytes())
    return found.hexdigest()


def differences(
    first: Updates, second: Updates, training: Training
) -> Iterator[Finding]:
    """The first update of `second` that is not as in `first`, by what went into it."""
    for number, two in sorted(second.by_number.items()):
        one = first.by_number.get(number)
        if one is None or one == two:
            continue
        begins = number == min(second.by_number)
        yield _finding(number + 1, one, two, training, first.changed, begins)
        return


def _finding(
    number: int,
    one: Update,
    two: Update,
    training: Training,
    changed: list[tuple[Owner, str]],
    begins: bool,
) -> Finding:
    """Of one update; after the first, other weights come of the update before."""
    if one.batch != two.batch:
        what = "data"
        why = (
            f"update {number} has another batch after a resume than without the stop: "
            "the data set draws from a stream of its own, or counts its samples"
        )
        remedy = (
            "draw in __getitem__ from random, numpy.random or torch, which are seeded "
            "for each sample, or from a generator made of the sample's index"
        )
        owner, method = getattr(training.loaders[0], "dataset", None), "__getitem__"
    elif one.weights != two.weights and begins:
        what = "weights"
        why = (
            f"the weights or buffers before update {number} are not those that were "
            "saved: something is changed when the model is built or loaded"
        )
        remedy = "keep such values in parameters or persistent buffers of the model"
        owner, method = training.runner.model, "__init__"
    else:
        what = "update"
        why = (
            f"update {number} goes otherwise from the same weights and batch: the "
            "model or a hook holds a state that no checkpoint has"
        )
        remedy = (
            "keep it in a buffer (register_buffer) of the model, or in state_dict and "
            "load_state_dict of the hook"
        )
        owner, method = training.runner.model, "forward"
        own = (one for each in owner.modules() for one in vars(each).values())
        if any(isinstance(one, Optimizer) for one in own):
            remedy = _OPTIMIZER
    data = type(getattr(training.loaders[0], "dataset", None))
    mine = (
        (owner, name)
        for owner, name in changed
        if isinstance(owner, ModuleType) or (owner is data) is (what == "data")
    )
    lines = (assigned(owner, name)[0] for owner, name in mine if what != "weights")
    site = next(filter(None, lines), None)
    site = site or defined(getattr(type(owner), method, None))
    return Finding("differs", "resume", what, why, remedy, site)
