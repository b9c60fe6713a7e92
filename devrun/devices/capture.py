"""Host state that a captured graph would freeze.

Python code of a forward pass runs once where a device captures a graph, and never when
the graph is replayed. What it draws from `random` or `numpy.random`, or counts in an
attribute of its module, keeps the value of that one time. No SDK reports it, so both
are compared before and after the capture.
"""

from __future__ import annotations

import inspect
import itertools
import random
import re
import sys
import types
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from devrun.blame import is_users
from devrun.devices.emulation import EMULATED_PACKAGES
from devrun.tensors import OPAQUE, held

_INTERNAL = frozenset(vars(nn.Module())) | {"forward"}
"""What torch itself keeps in a module; a captured `forward` is there too."""
_DEPTH = 4
"""How far into containers and plain objects an attribute is followed."""
_MOST = 1_000
"""Values of a container, and of an array, that are compared."""
_NO_STATE = (Tensor, types.BuiltinFunctionType, *OPAQUE)
_GENERATORS: dict[type, Callable[[Any], Any]] = {
    random.Random: random.Random.getstate,
    np.random.Generator: lambda one: repr(one.bit_generator.state),
    np.random.RandomState: lambda one: repr(one.get_state(legacy=False)),
    torch.Generator: lambda one: one.get_state().cpu().numpy().tobytes(),
    itertools.cycle: lambda one: _turn(one),
}
"""What of each kind is compared."""
_REMEDIES = {
    True: (
        "Transform batches on the host instead (collate_fn of the data loader), or "
        "draw with torch's functions, which the graph draws anew each time"
    ),
    False: (
        "Keep such a value in a buffer (register_buffer) that the forward pass changes "
        "in place"
    ),
}
_ADDS = "append|appendleft|extend|insert|add|update"
"""Methods of what is changed so."""
_ABSENT = object()
_DRAWS = {
    "random": r"(?<![.\w])random\.\w",
    "numpy.random": r"\b(np|numpy)\.random\b",
    "torch's CPU generator": r"\btorch\.(rand|normal|bernoulli|multinomial)"
    r"|\.(normal|uniform|bernoulli|random|exponential)_\(",
}
_watching: list[Any] = []


def captured() -> bool:
    """Whether the code that runs is being captured as a graph, and never runs again."""
    return bool(_watching)


@dataclass(frozen=True)
class Finding:
    """One thing of the host that the forward pass used up or changed."""

    what: str
    """A clause: `draws from numpy.random`, `changes Net.step from 0 to 1`."""
    site: str | None
    """`file:line` of the user's class that does it; None if unknown."""
    random: bool
    """Whether it is a draw of random numbers, not an attribute."""

    @property
    def remedy(self) -> str:
        return _REMEDIES[self.random]

    def message(self, device: str) -> str:
        """One line: what happens, where, its consequence and what to do.

        Args:
            device: as the line begins, `ipu` or `hpu graphs`.
        """
        at = f" at {self.site}" if self.site else ""
        return (
            f"{device}: the forward pass{at} {self.what} in Python, which runs only "
            f"while the graph is captured: every later batch gets the same. "
            f"{self.remedy}"
        )


class CaptureWatch:
    """`with CaptureWatch(model) as watch: <capture>`; then `watch.findings`.

    Compared are the global states of `random`, `numpy.random` and of torch on the CPU,
    and the plain values in the attributes of every module of `roots`: numbers, text,
    containers and plain objects of them, NumPy arrays and random generators. An
    attribute that was missing or None before counts as a cache that is being filled. Of
    tensors, which a graph has, only those are found that a method reads before it puts
    others in their place. What is as before at the end is no finding.
    """

    def __init__(self, *roots: nn.Module) -> None:
        self.findings: list[Finding] = []
        self._kept: dict[nn.Module, dict[str, Any]] = {}
        self._names = {
            module: ".".join(filter(None, (_class_of(root).__name__, path)))
            for root in roots
            for path, module in root.named_modules()
        }
        self._streams: dict[str, Any] = {"random": random._inst}
        self._streams["numpy.random"] = np.random.mtrand._rand
        # a device has one of its own
        self._streams["torch's CPU generator"] = torch.random.default_generator
        files = {sys.modules.get(_class_of(one).__module__) for one in self._names}
        kept = (one for module in self._names for one in vars(module).values())
        self._others = [one for one in kept if not isinstance(one, nn.Module)]
        """What the modules keep, and functions of the files that they are in."""
        for file in files:
            if is_users(str(getattr(file, "__file__", ""))):
                self._others += filter(inspect.isfunction, vars(file).values())
                for name, one in vars(file).items():
                    if isinstance(one, tuple(_GENERATORS)):
                        self._streams[f"the global {name}"] = one

    def __enter__(self) -> CaptureWatch:
        self._before = _copies(self._streams)
        self._kept = {module: _attributes(module) for module in self._names}
        self._tensors = {module: _tensors(module) for module in self._names}
        _watching.append(self)
        return self

    def __exit__(self, *details: Any) -> None:
        _watching.remove(self)
        now = _copies(self._streams)
        for name, state in self._before.items():
            if now[name] != state:
                own = rf"\b{name.rpartition(' ')[2]}\b"
                draws = _DRAWS.get(name, own)
                sites: Any = _sites_of(self._names, draws)
                sites = sites or _sites_of(self._others, draws)
                for site in sites or [_site_of(self._names)]:
                    self.findings.append(Finding(f"draws from {name}", site, True))
        for module, before in self._kept.items():
            self._kept[module] = _attributes(module)
            self._compare(module, before, self._kept[module])
        for module, before in self._tensors.items():
            for key, tensors in _tensors(module).items():
                same = list(map(id, tensors)) == list(map(id, before.get(key, ())))
                # a later call would have read these, in attributes of no graph's
                if not same and (site := _carried_at(module, key)):
                    what = f"changes {self._names[module]}.{key}"
                    self.findings.append(Finding(what, site, False))

    def look_again(self, *others: Any) -> None:
        """Find attributes that the modules use, and `others` have changed since."""
        for module, then in self._kept.items():
            self._compare(module, then, _attributes(module), others)

    def _compare(
        self, module: nn.Module, before: Any, now: Any, others: Sequence[Any] = ()
    ) -> None:
        for key, was in before.items():
            value, uses = now.get(key, _ABSENT), rf"\bself\.{re.escape(key)}\b"
            if _ABSENT in (was, value) or _filled_in(was, value):
                continue
            if others and any(_lines_of([module])) and not _sites_of([module], uses):
                continue
            owner: Any = module
            name = f"{self._names[module]}.{key}"
            while part := _changed_part(was, value):
                owner, key, was, value = part
                name = f"{name}.{key}"
            drawn = isinstance(was, tuple) and was[0] in _GENERATORS
            change = f"changes {name}{_change(was, value)}"
            what = f"draws from {name}" if drawn else change
            if _grown(was, value) and not _carried_at(owner, key):
                continue
            changes = rf"(\s*[-+*/%@&|^]*=(?!=)|\.({_ADDS})\()"
            sets = rf"\.{re.escape(key)}\b(\[[^]]*\])?{changes}"
            uses = rf"\bself\.{re.escape(key)}\b"
            site = _site_of([*others, owner], sets, uses)
            self.findings.append(Finding(what, site, drawn))


def _carried_at(module: nn.Module, key: str) -> str | None:
    """The line of a method that changes the attribute after it has read it."""
    # of a rehearsal's, which a run without such a change need not load
    from devrun.probes.sources import carried

    return carried(_class_of(module), key)


def _grown(was: Any, now: Any) -> bool:
    """Whether a mapping has more than before, and all that it had, as a cache does."""
    both = (each for each in (was, now) if isinstance(each, tuple))
    return [each[0] for each in both] == [dict, dict] and {**now[1], **was[1]} == now[1]


def _filled_in(was: Any, now: Any) -> bool:
    """Whether `now` is as before, but for what was None or, in an object, missing."""
    if was is None or was == now:
        return True
    if not (_is_object(was) and _is_object(now) and was[0] is now[0]):
        return False
    return all(
        key in now[1] and _filled_in(one, now[1][key]) for key, one in was[1].items()
    )


def _changed_part(was: Any, now: Any) -> tuple[type, str, Any, Any] | None:
    """Class, name and values of the attribute of a plain object that has changed."""
    if not (_is_object(was) and _is_object(now) and was[0] is now[0]):
        return None
    for key, one in was[1].items():
        if not _filled_in(one, now[1].get(key, _ABSENT)):
            return was[0], key.strip("'"), one, now[1].get(key, _ABSENT)
    return None


def _is_object(copied: Any) -> bool:
    """Whether it was copied of a plain object, as a config is, and no container."""
    if not (isinstance(copied, tuple) and len(copied) == 2):
        return False
    kind, inner = copied  # with a dict the first is always a class
    containers = (Mapping, list, tuple, deque)
    return isinstance(inner, dict) and not issubclass(kind, containers)


def _class_of(module: Any) -> type[Any]:
    """The user's class, of which an SDK may have made a subclass of its own."""
    kinds = module.__mro__ if isinstance(module, type) else type(module).__mro__
    packages = [kind.__module__.partition(".")[0] for kind in kinds]
    own = [place for place, name in enumerate(packages) if name in EMULATED_PACKAGES]
    return kinds[own[-1] + 1 if own else 0]


def _site_of(modules: Iterable[nn.Module], *patterns: str) -> str | None:
    """The first of `_sites_of`; without any, where the first `forward` begins."""
    begins = (one[0] for one in _lines_of(modules) if one[1].endswith(".forward"))
    return next(iter(_sites_of(modules, *patterns)), next(begins, None))


def _sites_of(owners: Iterable[Any], *patterns: str) -> list[str]:
    """`file:line` of the users' lines, of one method that is not `__init__`, in which
    the first of `patterns` is found that is."""
    lines = [one for one in _lines_of(owners) if not one[1].endswith((".", "__init__"))]
    for each in patterns:
        found = [one for one in lines if re.search(each, one[2])]
        if found:
            return [site for site, method, _ in found if method == found[0][1]]
    return []


def _lines_of(owners: Iterable[Any]) -> Iterator[tuple[str, str, str]]:
    """`file:line`, method and code of each line of the users' classes and programs."""
    whole = (types.ModuleType, types.FunctionType)
    kinds = [one if isinstance(one, whole) else _class_of(one) for one in owners]
    for kind in dict.fromkeys(kinds):
        try:
            lines, first = inspect.getsourcelines(kind)
            file = str(inspect.getsourcefile(kind))
        except (OSError, TypeError):  # made without a file
            continue
        method = ""
        for number, line in enumerate(lines if is_users(file) else (), max(first, 1)):
            if begun := re.match(r"\s*def (\w+)", line):
                method = begun[1]
            yield f"{file}:{number}", f"{kind}.{method}", line.partition("#")[0]


def _copies(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: _copied(value) for name, value in values.items()}


def _attributes(module: nn.Module) -> dict[str, Any]:
    """What is compared of a module's own attributes, by name."""
    own = vars(module).items()
    return _copies({key: value for key, value in own if key not in _INTERNAL})


def _tensors(module: nn.Module) -> dict[str, list[Tensor]]:
    """Those that attributes hold, and no graph has."""
    own = vars(module).items()
    return {key: held(value) for key, value in own if key not in _INTERNAL}


def _copied(value: Any, depth: int = _DEPTH) -> Any:
    """What can be compared of `value`; `_ABSENT` for tensors, functions, classes.

    What is too deep, too much or neither plain nor made of it counts by its type.
    """
    if value is None or isinstance(value, (bool, int, float, complex, str, bytes)):
        return value if value == value else "nan"
    if isinstance(value, _NO_STATE):
        return _ABSENT
    if isinstance(value, np.ndarray) and value.size <= _MOST:
        return ("array", value.shape, value.tobytes())
    for kind, state in _GENERATORS.items():
        if isinstance(value, kind):
            return (kind, state(value))
    if isinstance(value, (itertools.count, set, frozenset)):
        return (type(value), repr(value))
    inner = _inside(value)
    if depth == 0 or len(inner) > _MOST:
        return type(value)
    pairs = ((repr(key), _copied(one, depth - 1)) for key, one in inner.items())
    return (type(value), {key: one for key, one in pairs if one is not _ABSENT})


def _inside(value: Any) -> Mapping[Any, Any]:
    """What a container, or a plain object of the user's, holds."""
    if isinstance(value, Mapping):
        return value
    if isinstance(value, (list, tuple, deque)):
        return dict(enumerate(value))
    hidden = ("torch", "numpy", "devrun", *EMULATED_PACKAGES)
    theirs = type(value).__module__.partition(".")[0] not in hidden
    found = getattr(value, "__dict__", None)
    return found if theirs and isinstance(found, dict) else {}


def _turn(cycle: Any) -> Any:
    """Where a cycle is; None where Python does not say it, as from 3.14 on."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with suppress(TypeError, AttributeError):
            _, (values,), rest = cycle.__reduce__()
            return repr((values.__reduce__()[1:], rest))
    return None


def _change(before: Any, now: Any) -> str:
    """` from 0 to 1` for values that are short to say."""
    text = f" from {before!r} to {now!r}"
    plain = all(isinstance(value, (int, float, str)) for value in (before, now))
    return text if plain and len(text) <= 60 else ""
