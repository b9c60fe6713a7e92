"""Whether a run that resumes does what the first would have done."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from itertools import chain
from types import FunctionType, MappingProxyType, ModuleType
from typing import Any
from unittest.mock import patch

from torch import nn
from torch.optim import Optimizer

from devrun.hooks.base import Hook, Priority
from devrun.probes.births import hidden
from devrun.probes.finding import Finding
from devrun.probes.probe import Watching, own_hooks
from devrun.probes.sites import defined
from devrun.probes.sources import assigned, counts, decides, stored
from devrun.rehearsal.check.digests import digest
from devrun.rehearsal.check.unsaved import (
    SHARED,
    TRAINS,
    Key,
    State,
    as_plain,
    attributes_of,
    copy_of,
    owners_of,
    put,
    stateful,
)
from devrun.run import Run
from devrun.runners.training import Training
from devrun.tensors import held

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
_FREES = (
    "ask runner.iter >= N, or the epoch so, in before_train_iter: what was freed or "
    "frozen at N begins as the model is built in a run that resumes after it"
)
_TRIED = 8
"""Values of which is tried whether they make a difference."""


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
        self.reads = Reads()
        """Of a run that resumes: of a model in its first update, of hooks in all."""

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
        owners = owners_of(self.training) if self._carried else {}
        known = self._parameters()
        for (kind, number, name), value in self._carried.items():
            if (kind, number) in owners:  # the name may be made later
                put(owners[kind, number], name, value, known)

    def _parameters(self) -> dict[int, Any]:
        """Those of the model, by the ids that they had in the run before."""
        mine = self.training.runner.model.parameters()
        return {id(one): new for one, new in zip(self._known, mine)}

    def before_train_iter(self, runner: Run) -> None:
        if self._first is None:
            held = attributes_of(self.training)
            self._first = as_plain(held)
            self.middle = self._first if self._resumes else None
            if self._resumes:
                self.reads.begin(held)
            update = getattr(runner.adapter, "update", None)
            self._scales = getattr(update, "scaler", None) is not None
        if self.saved and self.middle is None:
            self.middle = as_plain(attributes_of(self.training))
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

    def after_train_iter(self, runner: Run) -> None:
        # a model reads in each update what it reads in the first, and slower so
        self.reads.of(map(type, own_hooks(self.training.runner)))
        loss = digest(runner.outputs.get("loss"))
        self.by_number[runner.iter] = Update(self._weights, self._batch, loss)
        middle = (runner.max_iters or 0) * (self._rounds - 1) // self._rounds
        if not runner.state.by_epoch and runner.iter + 1 == middle:
            self._save(runner)

    def after_run(self, runner: Run) -> None:
        """What the last update made counts as what one more began with."""
        self.reads.of(())
        self.by_number[runner.iter] = Update(self._weighed(runner), "", "")
        self.ended = as_plain(attributes_of(self.training))

    def on_exception(self, runner: Run, _: BaseException) -> None:
        """An update that raises is another than one that does not."""
        self.reads.of(())
        self.by_number[runner.iter] = Update(self._weights, self._batch, "")
        self.broke = True

    def after_train_epoch(self, runner: Run) -> None:
        if runner.state.by_epoch and runner.epoch == self._rounds - 2:
            self._save(runner)

    def _save(self, runner: Run) -> None:
        held = attributes_of(self.training)
        now, before = as_plain(held), self._first or {}
        self._then = now
        changed = [k for k, v in now.items() if v is None or before.get(k) != v]
        parameters = self._parameters()
        for key in sorted(changed, key=lambda k: now[k] is not None):  # sources first
            self.changed[key] = copy_of(getattr(*held[key]), parameters)
        self.saved = runner.save_checkpoint(name="middle")


class Reads:
    """Notes what is read of objects before it is set."""

    def __init__(self) -> None:
        self.first: set[Key] = set()
        self._todo: dict[tuple[int, str], Key] = {}
        self._noting = ExitStack()

    def begin(self, held: Mapping[Key, tuple[Any, str]]) -> None:
        """Of all that is `held`: owner and name of each attribute."""
        own = {key: owner for key, (owner, _) in held.items() if key[1] != SHARED}
        self._todo = {(id(owner), key[2]): key for key, owner in own.items()}
        self.of(map(type, own.values()))

    def of(self, kinds: Iterable[type]) -> None:
        """From now on only of what is of these classes, if it began."""
        self._noting.close()
        for kind in set(kinds) if self._todo else ():
            self._noting.enter_context(_noted(kind, self._todo, self.first))


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
    goes_on = carried if found else begun
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
        if blame is not None and blame.what == "update":
            blame = _begins_anew(key, first) or blame
        # what is made in an update cannot be put there before
        sure = isinstance(carried[key], State) or not _differ(key, whole, first)
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


def counters(first: Updates) -> Iterator[Finding]:
    """What hooks count up to a number, also where it did not come to that here."""
    for (kind, number), owner in owners_of(first.training).items():
        saves = getattr(type(owner), "state_dict", None) is not Hook.state_dict
        if not saves and defined(type(owner)):
            own = (name for name, value in vars(owner).items() if type(value) is int)
            keys = ((kind, number, name) for name in own if counts(type(owner), name))
            yield from filter(None, (_begins_anew(key, first) for key in keys))


def _begins_anew(key: Key, first: Updates) -> Finding | None:
    """Of what is otherwise after a resume: that it is, where it is not only shown."""
    kind, number, name = key
    of_class = number == SHARED and isinstance(kind, type)
    if of_class or isinstance(kind, FunctionType):
        return None
    # it may be gone since the save
    owner = owners_of(first.training).get((kind, number))
    value = getattr(owner, name, None)
    states = stateful(value)
    of_weights = hidden(value) or _like_weights(value, first.training.runner.model)
    if not (of_weights or states or decides(kind, name)):
        return None
    remedy = _STATE if states else _WORDS["update"][1]
    what = f"self.{name}" if isinstance(kind, type) else name
    row = (what, _ANEW, remedy, assigned(kind, name)[0])
    return Finding("differs", "resume", *row)


def _like_weights(value: Any, model: nn.Module) -> bool:
    """Whether it has a tensor of the shape of each weight, as an average of them, or of
    all that the model saves, as the best of them."""
    kept = [one.shape for one in held(value)]
    shapes = [one.shape for one in model.parameters() if one.requires_grad]
    saved = [one.shape for one in held(model.state_dict())]
    return bool(shapes) and kept in (shapes, saved)


def _differ(key: Key, one: Updates, two: Updates) -> bool:
    """Whether it is otherwise after the save, and is read so, or still at the end."""
    middle = (one.middle or {}).get(key) != (two.middle or {}).get(key)
    counts = key in two.reads.first or one.ended.get(key) != two.ended.get(key)
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
    elif one.weights != two.weights and number == min(second.by_number) and not sure:
        # later, other weights come of the update before
        what, method, keys = "weights", "__init__", []
    why, remedy = _WORDS[what]
    if what == "update" and any(isinstance(part, Optimizer) for part in own):
        remedy = _OPTIMIZER
    elif [name for _, _, name in keys] == [TRAINS]:
        remedy = _FREES
    mine = [
        (kind, name)
        for kind, at, name in keys
        if sure or at == SHARED or (kind is type(dataset)) is of_data
    ]
    kinds = ((kind, n) for kind, n in mine if not isinstance(kind, FunctionType))
    of_class = (assigned(kind, name)[0] for kind, name in kinds)
    files = (one for one, _ in owners_of(training) if isinstance(one, ModuleType))
    of_files = (stored(one, name, "attr") for one in files for _, name in mine)
    lines = filter(None, chain(of_class, of_files))
    methods = (defined(getattr(owner, one, None)) for one in (method, "train_step"))
    site = next(chain(lines, filter(None, methods)), None)
    why = why.format(min(number + 1, max(first.by_number)))
    return Finding("differs", "resume", what, why, remedy, site)
