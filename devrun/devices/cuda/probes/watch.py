"""Sees each operator of a run on the CPU, with where its tensors would be."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from devrun.probes.births import birth_of, built_on_host
from devrun.probes.finding import Finding
from devrun.probes.origins import (
    DEVICE,
    HOST,
    ON_HOST,
    Host,
    Origins,
    flat_tensors,
    joined,
)
from devrun.probes.sites import calling, is_foreign
from devrun.tensors import tensors_in

_SHOWN = ("__repr__", "__str__", "__format__")
_LEAVE = ("cpu", "numpy", "__array__", "tolist", *_SHOWN)
"""Calls that read a whole tensor, of which no operator of the CPU's tells."""
_MOVES = ("to", "cuda", "type")
"""Methods whose result is where they were asked to put it."""
OF_LISTS = ("tensor", "as_tensor", "new_tensor")
"""Calls that read each tensor of a list."""
_OF_HOST = (list, int, float, np.ndarray)
"""What a tensor is made of on the host, and then copied."""
_COPIES = ("to", "cpu", "type")
"""Those of `_LEAVE` whose result is a tensor on the host."""
_ITEMS = ("__getitem__", "__setitem__")
_INDEXES = ("index", "index_put", "index_put_", "_index_put_impl_")
_FOLLOWS = ("type_as", "new_tensor")
"""Calls whose result is where a tensor is that they were given."""
_FRESH = "aten::lift_fresh"
"""The operator by which `torch.Tensor([1.0])` hands over what it made."""
_FIRST = ("aten::_pack_padded_sequence", "aten::_pad_packed_sequence")
"""Operators of which only the first result is on the device; lengths are not."""


@dataclass(frozen=True)
class Op:
    """One operator of torch's with a tensor that would be on the device, or will be
    once what was told is mended.

    Attributes:
        name: without namespace and overload: `index_put_`.
        call: the function or method of torch's that asked for it, if one did.
        inputs: its tensors, those in lists too.
        hosts: those of `inputs` that would be on the host, with how they came to be;
            empty where all of them are.
        autocast: whether the call was made under autocast.
    """

    name: str
    call: str
    args: Sequence[Any]
    kwargs: dict[str, Any]
    inputs: list[Tensor]
    hosts: list[tuple[Tensor, Host]]
    autocast: bool

    @property
    def indexes(self) -> list[Tensor]:
        """What it indexes by, which may be on the host; empty of other operators."""
        given = self.args[1] if self.name in _INDEXES else ()
        return [one for one in given if one is not None]


class Judge(ABC):
    """Looks at operators and at calls; both before they are done."""

    def __init__(self) -> None:
        self.counts: Counter[tuple[Any, ...]] = Counter()
        """What a finding is made of -> how often it came in updates."""

    @abstractmethod
    def operator(self, op: Op) -> None: ...

    def leaves(self, call: str) -> None:
        """`call` reads a tensor of the device; a `generator` of the host fills one."""

    def findings(self, updates: int) -> Iterator[Finding]:
        """What came of so many updates."""
        for row, count in self.counts.items():
            yield replace(Finding(*row), per_step=count / updates or None)


class Calls(TorchFunctionMode):
    """Names the call that operators belong to, and tags what it makes."""

    def __init__(self, origins: Origins, judges: Sequence[Judge]) -> None:
        super().__init__()
        self.name = ""
        """Of the call in progress."""
        self.autocast = False
        self.quiet = False
        """Whether it reads values on a CPU only, or is judged already."""
        self._origins, self._judges = origins, judges

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        before = self.name, self.quiet, self.autocast
        self.autocast = torch.is_autocast_enabled("cpu")
        self.name = name = getattr(func, "__name__", "")
        first = args[0] if args else None
        stays = self._origins.stays(first) if name in _MOVES else None
        if kwargs.get("generator") in ON_HOST:
            if kwargs.get("device") or self._origins.on_device(first):
                self._tell("generator")
        try:
            if name in _LEAVE or _to_host(name, args, kwargs):
                return self._leaving(name, func, args, kwargs)
            if name in _ITEMS and self._origins.on_device(first):
                given = args[1] if isinstance(args[1], tuple) else args[1:2]
                if any(isinstance(one, (list, np.ndarray)) for one in given):
                    self._tell("copy")
            if name in OF_LISTS:
                lists = [one for one in args[:2] if isinstance(one, (list, tuple))]
                self._reads(name, flat_tensors(lists))
                there = kwargs.get("device") not in (None, HOST)
                there |= name == "new_tensor" and self._origins.on_device(first)
                data = args[1:2] if name == "new_tensor" else args[:1]
                of_host = any(isinstance(one, _OF_HOST) for one in data)
                if there and of_host and not self.quiet:
                    self._tell("copy")
            if name == "one_hot" and (args[1:] or "num_classes" in kwargs):
                self.quiet = True  # the range is checked on a CPU only
            if name == "save":
                self._reads(name, tensors_in(first))
                return func(*args, **kwargs)
            made = func(*args, **kwargs)
        finally:
            self.name, self.quiet, self.autocast = before
        if name in _MOVES:
            if isinstance(made, Tensor) and not self._origins.on_device(made):
                self._moved(made, args, kwargs)
            # what was read from the device is told there
            waits = stays and not stays.read and not kwargs.get("non_blocking")
            if waits and self._origins.on_device(made):
                self._tell("copy")
        elif name in _FOLLOWS and isinstance(made, Tensor):
            to = args[1] if name == "type_as" else first
            if self._origins.on_device(to):
                self._origins.tag(made, DEVICE)
        else:
            birth = birth_of(name, args, kwargs, self._origins.on_device)
            if isinstance(made, Tensor) and self._origins.of(made) is None:
                # what a call makes of tensors of the host alone is there too
                given = [self._origins.of(one) for one in flat_tensors(args)]
                hosts = [one for one in given if isinstance(one, Host)]
                birth = joined(hosts) if hosts and hosts == given else birth
            if birth is not None and isinstance(made, Tensor):
                self._origins.tag(made, birth)
        return made

    def through(self, func: Any) -> Callable[..., Any]:
        """`func`, of which torch tells its modes nothing."""

        def call(*args: Any, **kwargs: Any) -> Any:
            return self.__torch_function__(func, (), args, kwargs)

        return call

    def again(self) -> AbstractContextManager[Any]:
        """Within, other calls are seen than the one in progress."""
        return self if self.name else nullcontext()

    def _reads(self, name: str, tensors: Iterable[Tensor]) -> None:
        """The call `name` reads all of them, one by one."""
        if not self.quiet and any(map(self._origins.once_mended, tensors)):
            self._tell(name)
            self.quiet = True

    def _tell(self, name: str) -> None:
        for judge in self._judges:
            judge.leaves(name)

    def _leaving(self, name: str, func: Any, args: Any, kwargs: Any) -> Any:
        tensor = args[0]
        leaves = self._origins.on_device(tensor)
        if not kwargs.get("non_blocking"):
            self._reads(name, [tensor])
        self.quiet = True
        made = func(*args, **kwargs)
        if leaves and name in _COPIES:
            # on the CPU it is the tensor itself; elsewhere, another one on the host
            made = made.clone()
            self._origins.tag(made, Host(f".{name}()", read=True))
        return made

    def _moved(self, made: Tensor, args: Any, kwargs: Any) -> None:
        """`made` of `.to(...)` or `.cuda()` is where it was asked to be."""
        given, names = [*args[1:], *kwargs.values()], (str, torch.device, int, type)
        if any(self._origins.on_device(one) for one in given):
            self._origins.tag(made, DEVICE)
        elif not given or any(isinstance(one, names) for one in given):
            # the user's code is told of CUDA where a tensor is there; torch's is not
            asked = any(isinstance(one, torch.device) for one in given)
            knows = asked and not is_foreign(calling().f_code.co_filename)
            if not (knows and isinstance(self._origins.of(made), Host)):
                self._origins.forget(made)


def _to_host(name: str, args: Any, kwargs: Any) -> bool:
    """Whether `.to` or `.type` was asked for the host by its name, or by a type of its
    tensors; the device of one here, and the name of its type, say so too."""
    target = kwargs.get("device", args[1] if len(args) > 1 else None)
    if name == "type":
        return isinstance(target, type(torch.FloatTensor))
    return name == "to" and isinstance(target, str) and target == "cpu"


class Operators(TorchDispatchMode):
    """Tells the judges of each operator, and tags its results."""

    def __init__(self, origins: Origins, calls: Calls, judges: Sequence[Judge]) -> None:
        super().__init__()
        self._origins, self._calls, self._judges = origins, calls, judges

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """The model's own compiled parts stay compiled."""
        return True

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        inputs = [*flat_tensors(args), *flat_tensors(kwargs.values())]
        where = [self._origins.of(tensor) for tensor in inputs]
        given = zip(inputs, where)
        hosts = [(one, host) for one, host in given if isinstance(host, Host)]
        on_device = DEVICE in where
        mended = any(self._origins.is_blamed(host) for _, host in hosts)
        if (on_device or mended) and not self._calls.quiet:
            name = func._schema.name.rpartition("::")[2]
            call, cast = self._calls.name, self._calls.autocast
            mixed = hosts if on_device else []
            op = Op(name, call, args, kwargs, inputs, mixed, cast)
            for judge in self._judges:
                judge.operator(op)
        made = func(*args, **kwargs)
        fresh = not inputs or func._schema.name == _FRESH
        if fresh and not self._calls.name:  # of no tensor, and no call that is seen
            new = isinstance(made, Tensor) and self._origins.of(made) is None
            if new and (born := built_on_host()) is not None:
                self._origins.tag(made, born)
        elif inputs:
            results = made[:1] if func._schema.name in _FIRST else (made,)
            self._tag(results, hosts, on_device, len(inputs))
        return made

    def _tag(
        self, made: Any, hosts: list[tuple[Tensor, Host]], on_device: bool, count: int
    ) -> None:
        if not on_device and len(hosts) < count:
            return
        where = DEVICE if on_device else joined([host for _, host in hosts])
        for tensor in flat_tensors(made):
            if self._origins.of(tensor) is None:
                self._origins.tag(tensor, where)
