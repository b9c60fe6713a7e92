"""Operators that would be given tensors of the host and of the device together."""

from __future__ import annotations

import ast
import sys
import types
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

from torch import Tensor, nn

from devrun.devices.cuda.probes.watch import Judge, Op
from devrun.probes.finding import Finding
from devrun.probes.origins import (
    Host,
    Origins,
    storage_of,
)
from devrun.probes.sites import line_asking
from devrun.probes.sources import assigned
from devrun.python38 import unparsed
from devrun.tensors import tensors_in

_MIXED = frozenset(
    [
        *("copy_", "_to_copy", "detach", "set_", "resize_", "tensor_split"),
        *("_pack_padded_sequence", "_pad_packed_sequence", "segment_reduce"),
        "ctc_loss",
    ]
)
"""Operators and calls that take both."""


class Mismatches(Judge):
    """Notes each tensor of the host that an operator on the device is given."""

    def __init__(self, origins: Origins, updating: Callable[[], bool]) -> None:
        self._origins, self._updating = origins, updating
        self._lengths: Counter[str] = Counter()
        self._met: dict[Host, tuple[str, str]] = {}
        self._numpy: Counter[tuple[str, str]] = Counter()
        self._counts: Counter[Host] = Counter()

    def operator(self, op: Op) -> None:
        if op.name == "_pack_padded_sequence" and self._origins.on_device(op.args[1]):
            self._lengths[line_asking() or ""] += self._updating()
        if not op.hosts or {op.name, op.call} & _MIXED:
            return
        if op.name.startswith(("_foreach", "_fu")):
            return
        indexes = op.indexes
        for tensor, host in op.hosts:
            if tensor.dim() and not any(tensor is one for one in indexes):
                site = line_asking()
                if site is not None:
                    self._met.setdefault(host, (op.call.strip("_") or op.name, site))
                    self._counts[host] += self._updating()

    def leaves(self, call: str) -> None:
        site = line_asking() if call in ("numpy", "__array__") else None
        if site is not None:
            what = ".numpy()" if call == "numpy" else "numpy"
            self._numpy[what, site] += self._updating()

    def findings(self, updates: int) -> Iterator[Finding]:
        for host, (name, site) in self._met.items():
            at = "" if host.site == site else f" at {site}"
            yield Finding(
                severity="breaks",
                kind="device mismatch",
                what=host.what,
                why=f"it stays on the host, and {name}{at} takes tensors of one device",
                remedy=host.remedy or "keep it on the device: leave the copy out",
                site=host.site or site,
                per_step=self._counts[host] / updates or None,
            )
        for site, count in self._lengths.items():
            yield Finding(
                severity="breaks",
                kind="device mismatch",
                what="lengths of pack_padded_sequence",
                why="they are on the device, and it reads them on the host",
                remedy="lengths.cpu(), or lengths that no batch takes to the device",
                site=site or None,
                per_step=count / updates or None,
            )
        for (what, site), count in self._numpy.items():
            yield Finding(
                severity="breaks",
                kind="numpy on the device",
                what=what,
                why="numpy reads the host's memory only: a TypeError on the device",
                remedy="x.detach().cpu().numpy(), at the log interval: it is a sync",
                site=site,
                per_step=count / updates or None,
            )


def tag_attributes(model: nn.Module, origins: Origins) -> None:
    """Tensors that `model.to(device)` leaves: in plain attributes, and in modules.

    To be called before what is on the device is tagged, which may share their storage.
    """
    moved: list[Tensor] = []
    # a module may have an _apply that moves more than weights and buffers

    def note(tensor: Tensor) -> Tensor:
        moved.append(tensor)
        return tensor

    model._apply(note)
    mine = {id(storage_of(one)) for one in moved}

    def tag(tensor: Tensor, host: Host) -> None:
        if not origins.on_device(tensor) and id(storage_of(tensor)) not in mine:
            origins.tag(tensor, host)

    for module in model.modules():
        kind = type(module)
        for name, value in vars(module).items():
            if name.startswith("__") or name in ("_parameters", "_buffers", "_modules"):
                continue
            for tensor in _plain(value):
                site, line = assigned(kind, name)
                what = f"{kind.__name__}.{name}"
                remedy = "a buffer of each: self.register_buffer"
                if isinstance(value, Tensor):
                    remedy = _as_buffer(line, name)
                tag(tensor, Host(what, site, remedy))
            for tensor in _hidden(value):
                site, _ = assigned(kind, name)
                remedy = f"self.{name} = nn.ModuleList(...), which is moved with it"
                tag(tensor, Host(f"{kind.__name__}.{name}", site, remedy))
        for name, value in vars(kind).items():
            for tensor in _plain(value):
                remedy = f'self.register_buffer("{name}", ..., persistent=False)'
                site, _ = assigned(kind, name)
                tag(tensor, Host(f"{kind.__name__}.{name}", site, remedy))
        around = sys.modules.get(kind.__module__, types)
        for name, value in vars(around).items():
            for tensor in _plain(value):
                site, _ = assigned(around, name)
                remedy = f"{name}.to(x.device) where it is used, or a buffer of it"
                tag(tensor, Host(f"the global {name}", site, remedy))


def _plain(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    return list(tensors_in(value)) if type(value) in (list, tuple, dict) else []


def _hidden(value: Any) -> list[Tensor]:
    """Of modules in a plain list, or in a dict, which no module knows of."""
    parts = value.values() if type(value) is dict else value
    if type(value) not in (list, tuple, dict):
        return []
    modules = [part for part in parts if isinstance(part, nn.Module)]
    return [one for each in modules for one in (*each.parameters(), *each.buffers())]


def _as_buffer(line: str, name: str) -> str:
    """The assignment `line` as the registration of a buffer."""
    value = "..."
    with suppress(SyntaxError, ValueError, AttributeError):
        (statement,) = ast.parse(line).body
        value = unparsed(statement.value) or value  # type: ignore[attr-defined]
    return f'self.register_buffer("{name}", {value}, persistent=False)'
