"""Operators that would be given tensors of the host and of the device together."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from torch import Tensor, nn

from devrun.devices.cuda.probes.watch import Judge, Op
from devrun.probes.births import tag_attributes
from devrun.probes.finding import MISMATCH
from devrun.probes.origins import DEVICE, DRAWS, Host, Origins
from devrun.probes.sites import line_asking

_MIXED = frozenset(
    [
        *("copy_", "_to_copy", "detach", "set_", "resize_", "tensor_split"),
        *("_pack_padded_sequence", "_pad_packed_sequence", "segment_reduce"),
        "ctc_loss",
    ]
)
"""Operators and calls that take both."""
_LENGTHS = (
    "lengths of pack_padded_sequence",
    "they are on the device, and it reads them on the host",
    "lengths.cpu(), or lengths that no batch takes to the device",
)
_NUMPY = (
    "numpy reads the host's memory only: a TypeError on the device",
    "x.detach().cpu().numpy(), at the log interval: it is a sync",
)


class Mismatches(Judge):
    """Notes each tensor of the host that an operator on the device is given."""

    def __init__(self, origins: Origins, updating: Callable[[], int]) -> None:
        super().__init__()
        self._origins, self._updating = origins, updating
        self._met: dict[Host, str] = {}
        """What each met at first."""

    def operator(self, op: Op) -> None:
        if op.name == "_pack_padded_sequence" and self._origins.on_device(op.args[1]):
            self._note(MISMATCH, *_LENGTHS, line_asking())
        if not op.hosts or {op.name, op.call} & _MIXED:
            return
        if op.name.startswith(("_foreach", "_fu")):
            return
        indexes, site = op.indexes, line_asking()
        changes = op.name.endswith("_")  # a number of the host takes none of the device
        for tensor, host in op.hosts:
            number = not tensor.dim() and not (changes and tensor is op.inputs[0])
            if site and not number and not any(tensor is one for one in indexes):
                at = "" if host.site == site else f" at {site}"
                self._origins.blame(host)
                met = self._met.setdefault(host, (op.call.strip("_") or op.name) + at)
                why = f"it stays on the host, and {met} takes tensors of one device"
                remedy = host.remedy or "keep it on the device: leave the copy out"
                self._note(MISMATCH, host.what, why, remedy, host.site or site)

    def leaves(self, call: str) -> None:
        site = line_asking()
        if site and call == "generator":
            self._note(MISMATCH, *DRAWS, site)
        elif site and call in ("numpy", "__array__"):
            what = ".numpy()" if call == "numpy" else "numpy"
            self._note("numpy on the device", what, *_NUMPY, site)

    def _note(self, *row: Any) -> None:
        key = ("breaks", *row)
        self.counts[key] += bool(self._updating())


def tag_host(model: nn.Module, hooks: Iterable[Any], origins: Origins) -> None:
    """Tag what `model.to(device)` would move, and then what it leaves on the host."""

    def moved(tensor: Tensor) -> Tensor:
        origins.tag(tensor, DEVICE)
        return tensor

    def tag(tensor: Tensor, host: Host) -> None:
        if not origins.on_device(tensor):
            origins.tag(tensor, host)

    model._apply(moved)
    tag_attributes((*model.modules(), *hooks), tag)
