"""`Overflows`: updates that a loss scaler left out because scaled gradients overflowed.

A few in a row are how a dynamic scale finds its size. Many are a scale that no gradient
of this model fits under, and a run that trains nothing. A flag is read at once only
where that costs nothing, else when the host waits anyway.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from devrun.devices.finite import MAX_SKIPPED_IN_A_ROW

WARN_AFTER = 10
"""Updates left out in a row before the first warning; then at each doubling."""

_UNREAD = 1024

logger = logging.getLogger("devrun")


class Overflows:
    """Counts them, warns, and applies the policy after `MAX_SKIPPED_IN_A_ROW`.

    Args:
        host_shared: reading a flag costs nothing, so read each.
        give_up: does what the policy for losses that are not finite asks for, given
            what happened; it may raise, and is asked again after as many more.
    """

    def __init__(self, *, host_shared: bool, give_up: Callable[[str], None]) -> None:
        self.total = 0
        self._in_a_row = 0
        self._host_shared = host_shared
        self._give_up = give_up
        self._unread: list[Tensor] = []
        self._scaler: Any = None

    def note(self, scaler: torch.amp.GradScaler, optimizer: Any) -> None:
        """Look whether `scaler` leaves out the update in progress.

        Called between its `unscale_` and its `update`.
        """
        self._scaler = scaler
        found = list(scaler._found_inf_per_device(optimizer).values())
        if not found:
            return
        self._unread.append(found[0] if len(found) == 1 else sum(found[1:], found[0]))
        if self._host_shared or len(self._unread) >= _UNREAD:
            self.flush()

    def flush(self) -> None:
        """Take in the flags that were not read yet."""
        if not self._unread:
            return
        flags, self._unread = torch.stack(self._unread).tolist(), []
        for flag in flags:
            self._take(bool(flag))

    def _take(self, overflowed: bool) -> None:
        if not overflowed:
            self._in_a_row = 0
            return
        self.total += 1
        self._in_a_row += 1
        row = self._in_a_row
        doubled, rest = divmod(row, WARN_AFTER)
        if row % MAX_SKIPPED_IN_A_ROW == 0:
            self._give_up(self._what())
        elif not rest and doubled & (doubled - 1) == 0:
            logger.warning("%s (%d so far)", self._what(), self.total)

    def _what(self) -> str:
        return (
            f"{self._in_a_row} updates in a row were left out: gradients overflow at "
            f"the loss scale {self._scaler.get_scale():.4g}, so nothing is trained; "
            "lower loss_scale (or its init_scale), or set precision to bf16"
        )
