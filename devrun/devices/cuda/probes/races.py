"""What a stream or the host reads before it is sure to be written."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from devrun.devices.cuda.probes.watch import Judge, Op
from devrun.probes.sites import line_asking
from devrun.probes.streams import CLOCK

_KIND = "race"
_STREAM = (
    "another stream writes it{}, and nothing waits for that: it may be read before",
    "torch.cuda.current_stream().wait_stream(the other) in front of it",
)
_HOST = (
    "a copy that does not wait writes it{}: the host may read it before",
    "torch.cuda.current_stream().synchronize() in front of it, or no non_blocking",
)


class Races(Judge):
    """Notes each tensor that an update reads too early."""

    def __init__(self, updating: Callable[[], int]) -> None:
        super().__init__()
        self._updating = updating

    def operator(self, op: Op) -> None:
        """What it reads is told by `read`, also where no tensor is on the device."""

    def read(self, tensors: Iterable[Tensor], host: bool, what: str) -> None:
        """The call `what`, of the host or else of the current stream, reads them."""
        if torch._C._current_graph_task_id() != -1:
            return  # a backward pass waits for the streams of the forward pass
        for one in tensors:
            found = CLOCK.early(one, host)
            if found is None or not self._updating():
                continue
            here = line_asking()
            if here or found.site:
                at = f" at {found.site}" if found.site not in (None, here) else ""
                why, remedy = _HOST if host else _STREAM
                site = here or found.site
                row = ("differs", _KIND, what, why.format(at), remedy, site)
                self.counts[row] += 1
