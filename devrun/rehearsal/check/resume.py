"""Whether a run that resumes does what the first would have done."""

from __future__ import annotations

import hashlib
import time
import warnings
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, suppress
from copy import deepcopy
from dataclasses import dataclass
from enum import Enum
from io import IOBase
from itertools import chain
from types import FunctionType, MappingProxyType, ModuleType
from typing import Any, Tuple
from unittest.mock import patch

import numpy as np
import torch
from torch import nn
from torch.optim import Optimizer

from devrun.hooks.base import Priority
from devrun.probes.births import hidden, keepers
from devrun.probes.finding import Finding
from devrun.probes.probe import Watching, own_parts
from devrun.probes.sites import defined, is_library
from devrun.probes.sources import assigned, decides, stored
from devrun.rehearsal.check.digests import digest
from devrun.rehearsal.check.fresh import Shared, numbers_of, shared
from devrun.run import Run
from devrun.runners.training import Training
from devrun.tensors import held, map_tensors

_SOURCES = ("Generator", "Random", "RandomState")
"""Names of classes of torch's, numpy's and Python's that draw."""
_OPTIMIZER = (
    "optimizer: {NAME: {type: ...}} in the config, which makes and saves it, and gives "
    "it to train_step as optimizer['NAME']"
)
_WORDS = {
    "data": (
        "update {} has another batch after a resume than without the stop: the data "
        "set draws from a stream of its own, counts its samples or changes them",
        "draw in __getitem__ from random, numpy.random or torch, which are seeded for "
        "each sample, or from a generator made of its index; change a clone alone",
    ),
    "weights": (
        "the weights or buffers before update {} are not those that were saved: "
        "something is changed when the model is built or loaded",
        "keep such values in parameters or persistent buffers of the model",
    ),
    "update": (
        "update {} goes otherwise from the same weights and batch: the model or a hook "
        "holds a state that no checkpoint has",
        "keep it in a buffer (register_buffer) of the model, or in state_dict and "
        "load_state_dict of the hook",
    ),
}
"""What differs -> why, and the remedy."""
_ANEW = "it begins anew in a run that resumes: no checkpoint has it"
_STATE = (
    "its state_dict() in what get_extra_state of the model returns, or state_dict of "
    "the hook; set_extra_state or load_state_dict gives it back"
)
_SAVED: dict[type, Iterable[str]] = {
    nn.Module: vars(nn.Module()).keys(),
    Optimizer: ("state", "param_groups", "defaults"),
}
"""Attributes that are saved, or of torch's own, by the class that has them."""
_SCALARS = (int, float, str, Enum, type(None))
_LONGEST = 10_000
"""Parts of a list whose changes are looked for; a longer one is data."""
_SHARED = -1
"""Number of a class itself, or of a file, among those of the class."""
_TRIED = 8
"""Values of which is tried whether they make a difference."""
Key = Tuple[Shared, int, str]
"""Of an attribute: owner, number among those of its class, and name."""


@dataclass(frozen=True)
class Update:
    """What went into one update, and its loss, as digests that can be compared."""

    weights: str
    batch: str
    loss: str


class Updates(Watching):
    """Notes each update of a run by its number, and saves in the middle of the run.

    Args:
        first: the updates of the run that it goes on from.
        carried: what it takes over from there, besides the checkpoint.
        rounds: equal parts of the run, of which the last comes after the save.
    """

    priority = Priority.LOWEST

    def __init__(
        self,
        training: Training,
        first: Updates | None = None,
        carried: Mapping[Key, Any] = MappingProxyType({}),
        rounds: int = 2,
    ) -> None:
        begun = training if first is None else first.training
        self._known = list(begun.runner.model.parameters())
        self.by_number: dict[int, Update] = {}
        self.broke = False
        """Whether it ended before its end."""
        self.saved: str | None = None
        """The checkpoint that was taken in the middle."""
        self.training: Training = training
        self._carried, self._resumes = carried, first is not None
        self._rounds = rounds
        self._weights = self._batch = ""
        self._trained: set[str] = set()
        """Digests of the weights before each update."""
        self.batch: Any = None
        """The last one."""
        self._first: dict[Key, Any] | None = None
        self._then: dict[Key, Any] = {}
        """Digests of what is there at the save."""
        self.changed: dict[Key, Any] = {}
        """What was changed until the save, and its value then."""
        self.middle: dict[Key, Any] | None = None
        """Digests of what the first update after the save or a resume begins with."""
        self.ended: dict[Key, Any] = {}
        """Those of the end."""
        self.read_first: set[Key] = set()
        """What the first update after a resume reads before it sets it."""
        self._noting = ExitStack()

    @property
    def late(self) -> Iterator[Key]:
        """What was changed after the save only."""
        same = (key for key in self.ended if key not in self.changed)
        return (key for key in same if self.ended[key] != self._then.get(key))

    @property
    def trains_nothing(self) -> bool:
        """Whether no update changed a weight, nor may have left it out."""
        return len(self._trained) == 1 < len(self.by_number) and not self._scales

    def before_run(self, runner: Run) -> None:
        owners = _owners(self.training) if self._carried else {}
        known = self._parameters()
        for (kind, number, name), value in self._carried.items():
            if (kind, number) in owners:  # the name may be made later
                _put(owners[kind, number], name, value, known)

    def _parameters(self) -> dict[int, Any]:
        """Those of the model, by the ids that they had in the run before."""
        mine = self.training.runner.model.parameters()
        return {id(one): new for one, new in zip(self._known, mine)}

    def before_train_iter(self, runner: Run) -> None:
        if self._first is None:
            held = _attributes(self.training)
            self._first = _plain(held)
            self.middle = self._first if self._resumes else None
            if self._resumes:
                self._note_reads(held)
            update = getattr(runner.adapter, "update", None)
            self._scales = getattr(update, "scaler", None) is not None
        if self.saved and self.middle is None:
            self.middle = _plain(_attributes(self.training))
        self.batch = runner.data_batch
        self._weights = self._weighed(runner)
        self._batch = digest(runner.data_batch)

    def _weighed(self, runner: Run) -> str:
        """The digest of weights and buffers."""
        runner.adapter.sync_to_host(runner.model)
        weights = dict(runner.model.named_parameters())
        state = runner.model.state_dict()
        trained = digest(weights)
        self._trained.add(trained)
        rest = {key: value for key, value in state.items() if key not in weights}
        return trained + digest(rest)

    def _note_reads(self, held: Mapping[Key, tuple[Any, str]]) -> None:
        own = {key: owner for key, (owner, _) in held.items() if key[1] != _SHARED}
        todo = {(id(owner), key[2]): key for key, owner in own.items()}
        for kind in {type(owner) for owner in own.values()}:
            self._noting.enter_context(_noted(kind, todo, self.read_first))

    def after_train_iter(self, runner: Run) -> None:
        self._noting.close()
        loss = digest(runner.outputs.get("loss"))
        self.by_number[runner.iter] = Update(self._weights, self._batch, loss)
        middle = (runner.max_iters or 0) * (self._rounds - 1) // self._rounds
        if not runner.state.by_epoch and runner.iter + 1 == middle:
            self._save(runner)

    def after_run(self, runner: Run) -> None:
        """What the last update made counts as what one more began with."""
        self.by_number[runner.iter] = Update(self._weighed(runner), "", "")
        self.ended = _plain(_attributes(self.training))

    def on_exception(self, runner: Run, _: BaseException) -> None:
        """An update that raises is another than one that does not."""
        self._noting.close()
        self.by_number[runner.iter] = Update(self._weights, self._batch, "")
        self.broke = True

    def after_train_epoch(self, runner: Run) -> None:
        if runner.state.by_epoch and runner.epoch == self._rounds - 2:
            self._save(runner)

    def _save(self, runner: Run) -> None:
        held = _attributes(self.training)
        now, before = _plain(held), self._first or {}
        self._then = now
        changed = [k for k, v in now.items() if v is None or before.get(k) != v]
        parameters = self._parameters()
        for key in sorted(changed, key=lambda k: now[k] is not None):  # sources first
            self.changed[key] = _copy(getattr(*held[key]), parameters)
        self.saved = runner.save_checkpoint(name="middle")


def _noted(
    kind: type, todo: dict[tuple[int, str], Key], read: set[Key]
) -> AbstractContextManager[Any]:
    """Within, `read` gets what is read of objects of `kind`, if it was not set before.

    Args:
        todo: what is to be noted, by the id of the object and the name.
    """
    get: Any = kind.__getattribute__
    put: Any = kind.__setattr__

    def reads(owner: Any, name: str) -> Any:
        key = todo.pop((id(owner), name), None)
        read.update([key] if key else [])
        return get(owner, name)

    def sets(owner: Any, name: str, value: Any) -> None:
        todo.pop((id(owner), name), None)
        put(owner, name, value)

    return patch.multiple(kind, __getattribute__=reads, __setattr__=sets)


def _owners(training: Training) -> dict[tuple[Shared, int], Any]:
    """Model, loss, hooks, data set, optimizer, what of the user's objects they keep,
    and the files that they are in: by class, and number among those of the class."""
    runner, loader = training.runner, training.loaders[0]
    names = ("dataset", "collate_fn", "sampler")
    data = (getattr(loader, name, None) for name in names)
    found: dict[tuple[Shared, int], Any] = {}
    numbers: Counter[Any] = Counter()
    modules = runner.session.step_module.modules()  # of model and loss
    for owner in keepers((*modules, *own_parts(runner), *data)):
        found[type(owner), numbers[type(owner)]] = owner
        numbers[type(owner)] += 1
    return {**found, **{(owner, _SHARED): owner for owner in shared()}}


def _attributes(training: Training) -> dict[Key, tuple[Any, str]]:
    """Owner and name of what a checkpoint has nothing of, by class, number and name."""
    found: dict[Key, tuple[Any, str]] = {}
    saved = {id(one) for one in training.runner.session.step_module.modules()}
    for (kind, number), owner in _owners(training).items():
        for name in _unsaved(kind, owner):
            if id(getattr(owner, name)) not in saved:
                found[kind, number, name] = owner, name
    return found


def _unsaved(kind: Shared, owner: Any) -> Iterator[str]:
    """Names of its attributes that no checkpoint has."""
    if kind is owner:  # a file, or a class itself
        yield from (name for name, value in vars(owner).items() if _gives(value))
        yield from (name for name, _ in numbers_of(owner))
        return
    own = {n for k, names in _SAVED.items() if isinstance(owner, k) for n in names}
    site = defined(kind)  # those of a library tell what it did to this very object
    known: Iterable[str] = getattr(owner, "__dict__", {})
    if site is None or is_library(site):  # a hook may change what it was made with
        known = set(getattr(owner, "__constants__", ())) & set(known)
    unsaved = getattr(owner, "_non_persistent_buffers_set", ())
    yield from (name for name in (*known, *unsaved) if name not in own)


def _plain(attributes: Mapping[Key, tuple[Any, str]]) -> dict[Key, Any]:
    """Their numbers and tensors, as digests; None: a source of random numbers."""
    found: dict[Key, Any] = {}
    for key, (owner, name) in attributes.items():
        value = getattr(owner, name)
        if _gives(value):
            found[key] = None
        elif _has_state(value):
            with suppress(Exception):  # of the user's own
                state = dict(value.state_dict())
                plain = [v for v in state.values() if isinstance(v, (int, float, list))]
                found[key] = f"{digest(state)} {plain}"
        elif tensors := [*held(value), *hidden(value)]:
            found[key] = digest(tensors)
        elif isinstance(value, (np.ndarray, np.generic)):
            found[key] = hashlib.sha256(value.tobytes()).hexdigest()
        elif isinstance(value, _SCALARS) or (
            isinstance(value, (list, tuple, deque, dict)) and len(value) <= _LONGEST
        ):
            found[key] = repr(value)
        elif isinstance(value, set) and len(value) <= _LONGEST:
            found[key] = repr(sorted(map(repr, value)))
    return found


def _gives(value: Any) -> bool:
    """Whether it gives each value once: by chance, or one after the other."""
    draws = type(value).__name__ in _SOURCES
    return draws or (isinstance(value, Iterator) and not isinstance(value, IOBase))


class _State(dict):
    """The state of what has one of its own."""


def _has_state(value: Any) -> bool:
    """Whether it is an optimizer, a schedule, a scaler or the like."""
    kind = type(value)
    own = hasattr(kind, "state_dict") and hasattr(kind, "load_state_dict")
    return own and not isinstance(value, nn.Module)


def _copy(value: Any, known: dict[int, Any]) -> Any:
    """`value` now, with what is `known` by id; None of what cannot be copied."""
    if isinstance(value, torch.Generator):
        return value.get_state()
    if tensors := hidden(value):
        return [one.detach().clone() for one in tensors]
    if isinstance(value, deque):
        return deque((_copy(one, known) for one in value), value.maxlen)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of `cycle`, which newer Pythons keep
            if _has_state(value):
                return _State(deepcopy(value.state_dict()))
            copied = map_tensors(lambda one: one.detach().clone(), value)
            return deepcopy(copied, {**known})
    except Exception:  # noqa: BLE001 - the user's own
        return None


def _put(owner: Any, name: str, value: Any, known: dict[int, Any]) -> None:
    now = getattr(owner, name, None)
    if value is None:
        return
    if isinstance(now, torch.Generator):
        now.set_state(value)
    elif isinstance(value, _State):
        if now is not None:  # else it is made later
            now.load_state_dict(deepcopy(dict(value)))  # which an optimizer changes
    elif tensors := hidden(now):
        for one, saved in zip(tensors, value):
            one.detach().copy_(saved)
    else:
        setattr(owner, name, _copy(value, known))


def differences(
    first: Updates, second: Updates, resumed: Callable[..., Updates], seconds: float
) -> Iterator[Finding]:
    """Why the updates of `second` are not as in `first`, as far as `seconds` tell.

    Each value that changed is left out of a run that resumes with all the others.

    Args:
        resumed: another run, which takes so much over; or with None, the first again.
    """
    found = _difference(first, second, list(first.changed))
    end = time.monotonic() + seconds
    carried = dict(list(first.changed.items())[:_TRIED])
    anew = [key for key in carried if _differ(key, first, second)]
    begun = [key for key in anew if _begins_anew(key, first)]
    goes_on = carried and found.what != "weights" if found else begun
    if found is None and not begun:
        return
    blamed: list[Finding | None] = []
    whole = resumed(carried) if goes_on else second
    differs = whole.by_number != second.by_number and not whole.broke
    for key in carried if differs else begun:
        if time.monotonic() > end:
            break
        rest = {other: carried[other] for other in carried if other != key}
        without = resumed(rest) if differs else second
        blame = _difference(whole, without, [key], sure=True)
        # what is made in an update cannot be put there before
        sure = isinstance(carried[key], _State) or not _differ(key, whole, first)
        if blame is None and sure and _differ(key, first, without):
            blame = _begins_anew(key, first)
        blamed += [blame] if blame else []
    lost = [key for key, value in first.changed.items() if value is None]
    if found and lost:  # what cannot be taken over is why the rest differs
        blame = _difference(first, whole, lost)
        blamed += [blame] if blame else []
    if found and not blamed:
        again = resumed({}, None)  # what looks at the first may change its bits
        blamed += [_difference(again, resumed({}), list(again.changed))]
    elif goes_on and not whole.broke:  # what is of none of these values
        other = _difference(first, whole, [])
        blamed += [other] if other and other.what == "data" else []
    yield from filter(None, blamed)


def begins_late(first: Updates, resumed: Callable[..., Updates]) -> Iterator[Finding]:
    """What only the second round changes, and a run that resumes after it has not."""
    late = [key for key in first.late if _begins_anew(key, first)]
    if late:
        whole = resumed({}, None, rounds=3)
        without = resumed({}, whole, rounds=3)
        keys = (key for key in late if _differ(key, whole, without))
        yield from filter(None, (_begins_anew(key, whole) for key in keys))


def _begins_anew(key: Key, first: Updates) -> Finding | None:
    """Of what is otherwise after a resume: that it is, where it is not only shown."""
    kind, number, name = key
    if number == _SHARED or not isinstance(kind, type):
        return None
    owner = _owners(first.training).get((kind, number))  # it may be gone since the save
    value = getattr(owner, name, None)
    has_state = _has_state(value)
    of_weights = hidden(value) or _like_weights(value, first.training.runner.model)
    if not (of_weights or has_state or decides(kind, name)):
        return None
    remedy = _STATE if has_state else _WORDS["update"][1]
    row = (f"self.{name}", _ANEW, remedy, assigned(kind, name)[0])
    return Finding("differs", "resume", *row)


def _like_weights(value: Any, model: nn.Module) -> bool:
    """Whether it has a tensor of the shape of each weight, as an average of them."""
    shapes = [one.shape for one in model.parameters() if one.requires_grad]
    return bool(shapes) and [one.shape for one in held(value)] == shapes


def _differ(key: Key, one: Updates, two: Updates) -> bool:
    """Whether it is otherwise after the save, and is read so, or still at the end."""
    middle = (one.middle or {}).get(key) != (two.middle or {}).get(key)
    counts = key in two.read_first or one.ended.get(key) != two.ended.get(key)
    return middle and counts


def _difference(
    first: Updates, second: Updates, keys: list[Key], sure: bool = False
) -> Finding | None:
    """The first update of `second` that is not as in `first`, by what went into it.

    Args:
        keys: of values that may be why, one of which it is where that is `sure`.
    """
    pairs = ((n, first.by_number.get(n), two) for n, two in second.by_number.items())
    parted = ((n, one, two) for n, one, two in pairs if one not in (None, two))
    number, one, two = min(parted, default=(0, None, None), key=lambda row: row[0])
    if one is None or two is None:
        return None
    training = second.training
    dataset: Any = getattr(training.loaders[0], "dataset", None)
    model = training.runner.model
    own = (part for each in model.modules() for part in vars(each).values())
    what, owner, method = "update", type(model), "forward"
    if of_data := one.batch != two.batch:
        what, owner, method = "data", type(dataset), "__getitem__"
    elif one.weights != two.weights and number == min(second.by_number):
        # later, other weights come of the update before
        what, method, keys = "weights", "__init__", []
    why, remedy = _WORDS[what]
    if what == "update" and any(isinstance(part, Optimizer) for part in own):
        remedy = _OPTIMIZER
    mine = [
        (kind, name)
        for kind, at, name in keys
        if sure or at == _SHARED or (kind is type(dataset)) is of_data
    ]
    kinds = ((kind, n) for kind, n in mine if not isinstance(kind, FunctionType))
    of_class = (assigned(kind, name)[0] for kind, name in kinds)
    files = (one for one, _ in _owners(training) if isinstance(one, ModuleType))
    of_files = (stored(one, name, "attr") for one in files for _, name in mine)
    lines = filter(None, chain(of_class, of_files))
    site = next(lines, None) or defined(getattr(owner, method, None))
    why = why.format(min(number + 1, max(first.by_number)))
    return Finding("differs", "resume", what, why, remedy, site)
