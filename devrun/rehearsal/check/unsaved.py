"""What a run holds that no checkpoint has: attributes of its objects, by a key that the
same thing has in another run."""

from __future__ import annotations

import hashlib
import warnings
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from copy import deepcopy
from enum import Enum
from io import IOBase
from typing import Any, Tuple

import numpy as np
import torch
from torch import nn
from torch.optim import Optimizer

from devrun.probes.births import hidden, keepers
from devrun.probes.probe import own_parts
from devrun.probes.sites import defined, is_library
from devrun.rehearsal.check.digests import digest
from devrun.rehearsal.check.fresh import Shared, numbers_of, shared
from devrun.runners.training import Training
from devrun.tensors import held, inside, map_tensors

_SOURCES = ("Generator", "Random", "RandomState")
"""Names of classes of torch's, numpy's and Python's that draw."""
TRAINS = "requires_grad"
"""Name of what `_Weights` has."""
_SAVED: dict[type, Iterable[str]] = {
    nn.Module: vars(nn.Module()).keys(),
    Optimizer: ("state", "param_groups", "defaults"),
}
"""Attributes that are saved, or of torch's own, by the class that has them."""
_SCALARS = (int, float, str, Enum, type(None))
_LONGEST = 10_000
"""Parts of a list whose changes are looked for; a longer one is data."""
SHARED = -1
"""Number of a class itself, or of a file, among those of the class."""
Key = Tuple[Shared, int, str]
"""Of an attribute: owner, number among those of its class, and name."""


class _Weights:
    """Which of a model's are trained, as one value: no checkpoint has it."""

    def __init__(self, model: nn.Module) -> None:
        self._own = list(model.parameters())

    @property
    def requires_grad(self) -> list[bool]:
        return [one.requires_grad for one in self._own]

    @requires_grad.setter
    def requires_grad(self, values: list[bool]) -> None:
        for one, value in zip(self._own, values):
            one.requires_grad = value


def owners_of(training: Training) -> dict[tuple[Shared, int], Any]:
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
    found[_Weights, 0] = _Weights(runner.session.step_module)
    return {**found, **{(owner, SHARED): owner for owner in shared()}}


def attributes_of(training: Training) -> dict[Key, tuple[Any, str]]:
    """Owner and name of what a checkpoint has nothing of, by class, number and name."""
    found: dict[Key, tuple[Any, str]] = {}
    saved = {id(one) for one in training.runner.session.step_module.modules()}
    for (kind, number), owner in owners_of(training).items():
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
    if kind is _Weights:
        yield TRAINS
        return
    own = {n for k, names in _SAVED.items() if isinstance(owner, k) for n in names}
    site = defined(kind)  # those of a library tell what it did to this very object
    known: Iterable[str] = getattr(owner, "__dict__", {})
    if site is None or is_library(site):  # a hook may change what it was made with
        known = set(getattr(owner, "__constants__", ())) & set(known)
    unsaved = getattr(owner, "_non_persistent_buffers_set", ())
    yield from (name for name in (*known, *unsaved) if name not in own)


def as_plain(attributes: Mapping[Key, tuple[Any, str]]) -> dict[Key, Any]:
    """Their numbers and tensors, as digests; None: a source of random numbers."""
    found: dict[Key, Any] = {}
    for key, (owner, name) in attributes.items():
        value = getattr(owner, name)
        if _gives(value):
            found[key] = None
        elif parts := stateful(value):
            with suppress(Exception):  # of the user's own
                states = [dict(one.state_dict()) for one in parts]
                values = (v for state in states for v in state.values())
                plain = [v for v in values if isinstance(v, (int, float, list))]
                found[key] = f"{digest(states)} {plain}"
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


class State(list):
    """The states of what has one of its own."""


def stateful(value: Any) -> list[Any]:
    """`value`, or what it holds, where all are optimizers, schedules or the like."""
    parts = list(inside(value))
    return parts if all(map(_has_state, parts)) else []


def _has_state(value: Any) -> bool:
    kind = type(value)
    own = hasattr(kind, "state_dict") and hasattr(kind, "load_state_dict")
    return own and not isinstance(value, nn.Module)


def copy_of(value: Any, known: dict[int, Any]) -> Any:
    """`value` now, with what is `known` by id; None of what cannot be copied."""
    if isinstance(value, torch.Generator):
        return value.get_state()
    if tensors := hidden(value):
        return [one.detach().clone() for one in tensors]
    if isinstance(value, deque):
        return deque((copy_of(one, known) for one in value), value.maxlen)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of `cycle`, which newer Pythons keep
            if parts := stateful(value):
                return State(deepcopy(one.state_dict()) for one in parts)
            copied = map_tensors(lambda one: one.detach().clone(), value)
            return deepcopy(copied, {**known})
    except Exception:  # noqa: BLE001 - the user's own
        return None


def put(owner: Any, name: str, value: Any, known: dict[int, Any]) -> None:
    now = getattr(owner, name, None)
    if value is None:
        return
    if isinstance(now, torch.Generator):
        now.set_state(value)
    elif isinstance(value, State):
        for one, state in zip(stateful(now), value):  # none: it is made later
            one.load_state_dict(deepcopy(dict(state)))  # which an optimizer changes
    elif tensors := hidden(now):
        for one, saved in zip(tensors, value):
            one.detach().copy_(saved)
    else:
        setattr(owner, name, copy_of(value, known))
