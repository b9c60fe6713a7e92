"""Host state that a captured graph would freeze, and the line of code that uses it.

Python code of a forward pass runs once where a device captures a graph, and never when
the graph is replayed. What it draws from `random` or `numpy.random`, or counts in an
attribute of its module, keeps the value of that one time. No SDK reports it, so both
are compared before and after the capture.
"""

from __future__ import annotations

import functools
import itertools
import random
import sys
import sysconfig
import types
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from devrun.devices.emulation import EMULATED_PACKAGES

_INTERNAL = frozenset(vars(nn.Module())) | {"forward"}
"""What torch itself keeps in a module; a captured `forward` is there too."""
_DEPTH = 4
"""How far into containers and plain objects an attribute is followed."""
_MOST, _MOST_BYTES = 5_000, 1 << 20
"""Values of one attribute, and bytes of an array, that are compared."""
_NO_STATE = (
    Tensor,
    nn.Module,
    type,
    types.ModuleType,
    types.FunctionType,
    types.BuiltinFunctionType,
    types.MethodType,
)
_HIDDEN = ("torch", "numpy", *EMULATED_PACKAGES)
_ABSENT = object()
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
    """`file:line` of the user's code; None if unknown."""
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
            f"{device}: the forward pass {self.what}{at}, in Python, which runs only "
            f"while the graph is captured: every later batch gets the same. "
            f"{self.remedy}"
        )


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


class CaptureWatch:
    """`with CaptureWatch(model) as watch: <capture>`; then `watch.findings`.

    Compared are the global states of `random` and `numpy.random`, generators at the top
    of the file of a module's class, and the plain values in the attributes of every
    module of `roots`: numbers, text, containers and plain
    objects of them, NumPy arrays and random generators. Tensors are not: graphs have
    those. An attribute that was missing or None before counts as a cache that is being
    filled. What is as before at the end is no finding.

    Args:
        lines: whether to find the lines, by tracing the user's code (once, some
            microseconds a line). Not where a debugger or coverage traces already.
        host_torch: compare torch's CPU generator too, for devices with one of their
            own.
    """

    def __init__(
        self, *roots: nn.Module, lines: bool = True, host_torch: bool = False
    ) -> None:
        self.findings: list[Finding] = []
        self._lines = lines
        self._streams: dict[str, Callable[[], Any]] = dict(_STREAMS)
        if host_torch:
            host = functools.partial(_copied, torch.random.default_generator)
            self._streams["torch's CPU generator"] = host
        self._names: dict[int, str] = {}
        self._modules: list[nn.Module] = []
        for root in roots:
            for name, module in root.named_modules():
                if id(module) not in self._names:
                    owner = f"{_class_name(root)}.{name}" if name else _class_name(root)
                    self._names[id(module)] = owner
                    self._modules.append(module)
                    self._streams.update(_streams_beside(module))

    def __enter__(self) -> CaptureWatch:
        self._before = {name: read() for name, read in self._streams.items()}
        self._kept = {id(m): _attributes(m) for m in self._modules}
        self._tracer: _LineTracer | None = None
        if self._lines and sys.gettrace() is None:
            self._tracer = _LineTracer(self._streams, self._kept)
            sys.settrace(self._tracer)
        _watching.append(self)
        return self

    def __exit__(self, *details: Any) -> None:
        _watching.remove(self)
        sites: Mapping[Any, list[str]] = {}
        if self._tracer is not None:
            sys.settrace(None)
            sites = self._tracer.sites
        for name, read in self._streams.items():
            if read() != self._before[name]:
                self._found(f"draws from {name}", sites.get(name), True)
        for module in self._modules:
            before, now = self._kept[id(module)], _attributes(module)
            for key in _changed(before, now):
                name = f"{self._names[id(module)]}.{key}"
                at = sites.get((id(module), key))
                if _is_generator(before[key]):
                    self._found(f"draws from {name}", at, True)
                    continue
                change = _change(before[key], now.get(key, _ABSENT))
                self._found(f"changes {name}{change}", at, False)

    def _found(self, what: str, sites: Sequence[str] | None, drawn: bool) -> None:
        at: Sequence[str | None] = sites or (None,)
        self.findings += [Finding(what, site, drawn) for site in at]


class _LineTracer:
    """A trace function that sees after which line of user code something changed."""

    def __init__(
        self,
        streams: Mapping[str, Callable[[], Any]],
        kept: Mapping[int, Mapping[str, Any]],
    ) -> None:
        self.sites: dict[Any, list[str]] = {}
        self._streams, self._kept = streams, dict(kept)
        self._states = {name: read() for name, read in streams.items()}
        self._stack: list[types.FrameType] = []
        self._line = 0

    def __call__(self, frame: types.FrameType, event: str, arg: Any) -> Any:
        if not is_users(frame.f_code.co_filename):
            return None
        self._note_changes()
        self._stack.append(frame)
        self._line = frame.f_lineno
        return self._trace

    def _trace(self, frame: types.FrameType, event: str, arg: Any) -> Any:
        if event == "line":
            self._note_changes()
            self._line = frame.f_lineno
        elif event == "return":
            self._note_changes()
            self._stack.pop()
            self._line = self._stack[-1].f_lineno if self._stack else 0
        return self._trace

    def _note_changes(self) -> None:
        """Note what has changed since the last call, as done by the last line."""
        for name, read in self._streams.items():
            state = read()
            if state != self._states[name]:
                self._states[name] = state
                self._note(name)
        if not self._stack:
            return
        code, values = self._stack[-1].f_code, self._stack[-1].f_locals
        module = values.get(code.co_varnames[0]) if code.co_argcount else None
        before = self._kept.get(id(module))
        if before is None or not isinstance(module, nn.Module):
            return
        now = _attributes(module)
        for key in _changed(before, now):
            self._note((id(module), key))
        self._kept[id(module)] = now

    def _note(self, key: Any) -> None:
        if self._stack:
            sites = self.sites.setdefault(key, [])
            site = f"{self._stack[-1].f_code.co_filename}:{self._line}"
            if site not in sites:
                sites.append(site)


@functools.cache  # asked for each call that is traced
def is_users(filename: str) -> bool:
    """Whether code is neither Python's own nor torch's, NumPy's, an SDK's or devrun's.

    A library of models is the user's too: its line is the one to know.
    """
    if filename.startswith(("<frozen ", "<string>", "<__array_function__")):
        return False
    parents = Path(filename).parents
    loaded = (sys.modules.get(name) for name in _HIDDEN)
    hidden = {Path(str(m.__file__)).parent for m in loaded if m is not None}
    if Path(__file__).parents[1] in parents or hidden & set(parents):
        return False
    installed = {"site-packages", "dist-packages"} & set(Path(filename).parts)
    return bool(installed) or Path(sysconfig.get_paths()["stdlib"]) not in parents


def _numpy_state() -> Any:
    state: Any = np.random.get_state()
    return (state[1].tobytes(), *state[2:])


_GENERATORS: dict[type, Callable[[Any], Any]] = {
    random.Random: random.Random.getstate,
    np.random.Generator: lambda one: repr(one.bit_generator.state),
    np.random.RandomState: lambda one: repr(one.get_state(legacy=False)),
    torch.Generator: lambda one: one.get_state().cpu().numpy().tobytes(),
}
"""What of each kind is compared."""


def _streams_beside(module: nn.Module) -> dict[str, Callable[[], Any]]:
    """The generators at the top of the file that defines the class of `module`."""
    source = sys.modules.get(type(module).__module__)
    if source is None or not is_users(getattr(source, "__file__", None) or "<string>"):
        return {}
    return {
        f"{source.__name__}.{name}": functools.partial(_copied, value)
        for name, value in vars(source).items()
        if isinstance(value, tuple(_GENERATORS))
    }


_STREAMS: dict[str, Callable[[], Any]] = {
    "random": random.getstate,
    "numpy.random": _numpy_state,
}


def _class_name(module: nn.Module) -> str:
    """The user's class, of which an SDK may have made a subclass of its own."""
    kinds = type(module).__mro__
    packages = [kind.__module__.partition(".")[0] for kind in kinds]
    own = [place for place, name in enumerate(packages) if name in EMULATED_PACKAGES]
    return kinds[own[-1] + 1 if own else 0].__name__


def _attributes(module: nn.Module) -> dict[str, Any]:
    """What is compared of a module's own attributes, by name."""
    own = vars(module).items()
    return {key: _Copier().copy(value) for key, value in own if key not in _INTERNAL}


class _Copier:
    """Copies the plain values of one attribute, up to a number of them."""

    def __init__(self) -> None:
        self._left = _MOST

    def copy(self, value: Any, depth: int = _DEPTH) -> Any:
        """What can be compared of `value`; `_ABSENT` for tensors, functions, classes.

        What is too deep, too much or neither plain nor made of it counts by its type.
        """
        self._left -= 1
        if value is None or isinstance(value, (bool, int, float, complex, str, bytes)):
            return value if value == value else "nan"
        if isinstance(value, _NO_STATE):
            return _ABSENT
        if isinstance(value, np.ndarray) and value.nbytes <= _MOST_BYTES:
            return ("array", value.shape, value.tobytes())
        for kind, state in _GENERATORS.items():
            if isinstance(value, kind):
                return ("generator", state(value))
        if isinstance(value, itertools.count):
            return (itertools.count, repr(value))
        if depth == 0 or self._left <= 0:
            return type(value)
        if isinstance(value, (set, frozenset)):
            return (type(value), sorted(map(repr, value)))
        if isinstance(value, (list, tuple, deque)):
            copies = (self.copy(part, depth - 1) for part in value)
            return (type(value), [part for part in copies if part is not _ABSENT])
        inner = value if isinstance(value, Mapping) else _own(value)
        pairs = ((repr(k), self.copy(v, depth - 1)) for k, v in inner.items())
        return (type(value), {k: v for k, v in pairs if v is not _ABSENT})


def _copied(value: Any) -> Any:
    return _Copier().copy(value)


def _is_generator(copied: Any) -> bool:
    return isinstance(copied, tuple) and copied[0] == "generator"


def _own(value: Any) -> Mapping[str, Any]:
    """The attributes of an object of the user's."""
    theirs = type(value).__module__.partition(".")[0] not in (*_HIDDEN, "devrun")
    found = getattr(value, "__dict__", None)
    return found if theirs and isinstance(found, dict) else {}


def _changed(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Names whose value changed; one that had none is a cache being filled."""
    return [
        key
        for key, value in before.items()
        if value is not None and value is not _ABSENT
        if now.get(key, _ABSENT) is not _ABSENT and now[key] != value
    ]


def _change(before: Any, now: Any) -> str:
    """` from 0 to 1` for values that are short to say."""
    short = (bool, int, float, str)
    if isinstance(before, short) and isinstance(now, short):
        text = f" from {before!r} to {now!r}"
        return text if len(text) <= 60 else ""
    return ""
