"""Operators that would be given tensors of the host and of the device together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from torch import Tensor, nn

from devrun.devices.cuda.probes.watch import Judge, Op
from devrun.probes.births import tag_attributes
from devrun.probes.finding import Finding
from devrun.probes.origins import Host, Origins, storage_of
from devrun.probes.sites import line_asking

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


def tag_host(model: nn.Module, hooks: Iterable[Any], origins: Origins) -> None:
    """Tag what `model.to(device)` leaves, of which torch here moves nothing.

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

    tag_attributes((*model.modules(), *hooks), tag)
