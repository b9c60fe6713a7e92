"""Sees which user line asks for which operator, with what shapes, in some updates.

It is above the device in torch's dispatcher, so it works on any SDK. It is on for
the first updates of a run only: every operator passes through Python meanwhile.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from types import FrameType
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.utils._python_dispatch import TorchDispatchMode

from devrun.probes.sites import is_foreign
from devrun.tensors import is_spread, tensors_in

_MODES = ("__torch_dispatch__", "__torch_function__")
"""Methods of torch's modes, which hand on what some line below them asks for."""
_READS = {"_local_scalar_dense": "item", "equal": "equal"}
_COUNTS = ("nonzero", "masked_select", "_unique", "_unique2", "unique_dim")
_INDEXES = ("index", "index_put", "index_put_", "_index_put_impl_")
_NUMBERS_TRAVEL = frozenset(
    [
        *("add", "sub", "rsub", "mul", "div", "floor_divide", "pow"),
        *("remainder", "fmod", "eq", "ne", "lt", "le", "gt", "ge", "lerp"),
        *("masked_fill", "fill", "addcmul", "addcdiv", "_local_scalar_dense"),
    ]
)
"""Operators whose Python numbers become tensors, so that no graph depends on them."""


class Site(NamedTuple):
    """A line of Python; line 0 where it is not known."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}" if self.line else self.file


LOADER = Site("the data loader", 0)
NOWHERE = Site("the backward pass or the update", 0)
LAYERS = Site("a layer or loss of torch's", 0)
"""Below no line of the user's, where devrun itself calls the model."""


class OpWatch(TorchDispatchMode):
    """Enter it around each update, after `begin` was given the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.syncs: Counter[tuple[str, Site]] = Counter()
        """How often a line made the host wait, and by what."""
        self.wide: Counter[tuple[str, Site]] = Counter()
        """How often a line made numbers of 64 bits on the device, and by what."""
        self.sites: dict[str, Site] = {}
        """The first line seen of each operator, by its full name."""
        self.varying: dict[tuple[str, Site], str] = {}
        """What changed from update to update, in the order of the program."""
        self.updates = 0
        self._before: dict[Any, list[Any]] = {}
        self._now: dict[Any, list[Any]] = {}
        self._skipped: dict[str, bool] = {}

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """The model's own compiled parts stay compiled; an older torch asks not."""
        return True

    def begin(self, batch: Any) -> None:
        """The next update is on `batch`."""
        self._compare()
        self.updates += 1
        self._before, self._now = self._now, {}
        self._now["batch", LOADER] = [_shapes(batch)]

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        operands = list(tensors_in((args, kwargs)))
        # with stand-ins torch works out where the parts of a divided tensor will be,
        # and its mode for them is below this one
        if any(hasattr(tensor, "fake_mode") for tensor in operands):
            return func(*args, **kwargs)
        # what is asked of divided tensors is asked of their parts again
        spread = any(map(is_spread, operands))
        if not spread and any(not tensor.is_cpu for tensor in operands):
            self._note(func._schema.name, args, kwargs)
        # an emulated device's tensors run it themselves, below the line that asks;
        # torch also lists plain tensors, of which it copies one to save it
        if any(kind is not Tensor and kind is not Parameter for kind in types):
            return NotImplemented
        made = func(*args, **kwargs)
        if _widens(made, operands):
            self.wide[func._schema.name, self._site()] += 1
        return made

    def _note(self, name: str, args: Any, kwargs: Any) -> None:
        site = self._site()
        self.sites.setdefault(name, site)
        cause = _sync_cause(name.split("::")[-1], args, kwargs)
        if cause is not None:
            self.syncs[cause, site] += 1
        facts = _shapes(args)
        if name.split("::")[-1].rstrip("_") not in _NUMBERS_TRAVEL:
            facts = (facts, tuple(_numbers(args)))
        self._now.setdefault((name, site), []).append(facts)

    def _compare(self) -> None:
        # the first two updates differ by what they set up
        if self.updates < 3:
            return
        for key, facts in self._now.items():
            before = self._before.get(key)
            if before is not None and before != facts and key not in self.varying:
                pairs = zip(before, facts)
                old, new = next((p for p in pairs if p[0] != p[1]), (before, facts))
                self.varying[key] = f"{_shortened(old)} -> {_shortened(new)}"

    def _site(self) -> Site:
        frame: FrameType | None = sys._getframe(2)
        while frame is not None:
            file = frame.f_code.co_filename
            skip = self._skipped.get(file)
            if skip is None:
                skip = self._skipped[file] = file == __file__ or is_foreign(file)
            if not skip and frame.f_code.co_name not in _MODES:
                return Site(file, frame.f_lineno)
            frame = frame.f_back
        return NOWHERE


def _widens(made: Any, operands: list[Tensor]) -> bool:
    """Whether float64 begins on the device with `made`."""

    def is_wide(tensor: Tensor) -> bool:
        return tensor.dtype is torch.float64 and not tensor.is_cpu

    return any(map(is_wide, tensors_in(made))) and not any(map(is_wide, operands))


def _sync_cause(name: str, args: Any, kwargs: Any) -> str | None:
    if name in _READS:
        return None if args[0].is_cpu else _READS[name]
    if name in _COUNTS:
        return None if args[0].is_cpu else name
    if name in _INDEXES:
        masks = (i for i in args[1] if i is not None)
        masked = any(i.dtype in (torch.bool, torch.uint8) for i in masks)
        return "boolean index" if masked and not args[0].is_cpu else None
    if name == "_to_copy":
        target = kwargs.get("device")
        leaves = target is not None and target.type != args[0].device.type
        return "copy to host" if leaves and not args[0].is_cpu else None
    if name == "copy_":
        return "copy to host" if args[0].is_cpu and not args[1].is_cpu else None
    return None


def _shapes(value: Any) -> tuple[Any, ...]:
    # a nested tensor has a list of shapes, and may refuse to say so
    return tuple(
        tuple(t.shape) if not t.is_nested else ("nested", t.size(0))
        for t in tensors_in(value)
    )


def _numbers(value: Any) -> Iterator[Any]:
    if isinstance(value, (int, float)):
        yield value
    elif isinstance(value, (list, tuple)):
        for part in value:
            yield from _numbers(part)


def _shortened(facts: Any) -> str:
    text = str(facts)
    return text if len(text) <= 40 else text[:37] + "..."
