"""What a NaN or infinite loss does.

Reading a number makes the host wait for the device. Where host and device share
memory that costs a microsecond, so each loss is checked before its update. Elsewhere
`skip` has to wait at every step, and the others look only when `flush` is called:
at log points and before a save, where the host waits anyway. A run may so do some
updates with a bad loss, but it never saves their result.
"""

from __future__ import annotations

import logging
import math
from typing import Any

from torch import Tensor, nn

from devrun.dist import all_reduce_max, get_dist_info
from devrun.errors import DivergedError
from devrun.models.finite import not_finite

MAX_SKIPPED_IN_A_ROW = 50
"""After so many skipped updates one after the other, a skipping run stops too."""

_REMEDY = (
    "; lower the learning rate, add grad_clip, look at the inputs, or set "
    "nonfinite to 'skip' or 'warn'"
)

logger = logging.getLogger("devrun")


class FiniteGuard:
    """Watches the losses of one run.

    Args:
        action: one of `devrun.step.NONFINITE`.
        host_shared: reading a loss costs nothing, so read each.
    """

    def __init__(self, action: str, *, host_shared: bool) -> None:
        self.action = action
        self.immediate = host_shared or action == "skip"
        self.agree = get_dist_info()[1] > 1
        self._pending: Tensor | None = None
        """0, or nan where a value that was not looked at is not finite."""
        self.skipped = 0
        """Updates that were left out."""
        self.judges_gradients = False
        """Whether `blocks_norm` follows `blocks` and decides on the update with it."""
        self._in_a_row = 0
        self._warned = 0

    def blocks(self, loss: Tensor | float) -> bool:
        """Whether the update of this loss must not be done.

        A number is what a caller has read already, where that costs nothing.

        Raises:
            DivergedError: by policy `stop`, before the update.
        """
        value: Any = loss
        if isinstance(loss, Tensor):
            if not self.immediate:
                self._remember(loss)
                return False
            value = loss.item()  # which, unlike tolist, a plug-in's tensor has
        bad = mine = not math.isfinite(value)
        if self.agree:  # all ranks leave out the same update, or none does
            bad = all_reduce_max(float(bad)) > 0
        if not bad:
            if not self.judges_gradients:
                self._in_a_row = 0
            return False
        return self._found(
            f"the loss is {value}" if mine else "the loss of another rank is not finite"
        )

    def blocks_norm(self, norm: Tensor | float) -> bool:
        """As `blocks`, for the norm of all gradients, whichever was measured."""
        value: Any = norm
        if isinstance(norm, Tensor):
            if not self.immediate:
                self._remember(norm)
                return False
            value = norm.item()
        if math.isfinite(value):
            if self.judges_gradients:
                self._in_a_row = 0
            return False
        return self._found(f"the gradient norm is {value}")

    def give_up(self, what: str) -> None:
        """A run that gets nowhere for the reason `what`, as the policy has it.

        Raises:
            DivergedError: unless the policy is `warn` or `ignore`.
        """
        self._report(what, remedy="")

    def flush(self, model: nn.Module | None = None) -> None:
        """Look at everything not looked at yet, and at the weights of `model`.

        Raises:
            DivergedError: unless the policy is `warn` or `ignore`.
        """
        if self.action == "ignore":
            return
        pending, self._pending = self._pending, None
        bad = pending is not None and not math.isfinite(pending.item())
        if bad:
            self._report(
                "a loss or gradient norm since the last check was nan or infinite"
            )
        if model is not None and (name := not_finite(model)):
            self._report(f"{name} has nan or infinite values")

    def _remember(self, value: Tensor) -> None:
        # times 0: stays 0 for a finite number, else nan; a sum cannot overflow
        if self._pending is None:
            self._pending = value.detach().float() * 0
        else:
            self._pending.add_(value.detach(), alpha=0)

    def _found(self, what: str) -> bool:
        if self.action == "skip":
            self.skipped += 1
            self._in_a_row += 1
            if self._in_a_row >= MAX_SKIPPED_IN_A_ROW:
                raise DivergedError(
                    f"{what}, and {self._in_a_row} updates in a row were skipped for "
                    "it: lower the learning rate, add grad_clip or look at the inputs"
                )
            logger.warning(
                "%s: update skipped (%d so far, %d in a row)",
                what,
                self.skipped,
                self._in_a_row,
            )
            return True
        self._report(what)
        return False

    def _report(self, what: str, remedy: str = _REMEDY) -> None:
        if self.action not in ("warn", "ignore"):
            raise DivergedError(f"{what}{remedy}")
        self._warned += 1
        if self._warned & (self._warned - 1) == 0:  # 1st, 2nd, 4th, 8th, ... time
            logger.warning("%s (seen %d times)", what, self._warned)
