"""What a NaN or an infinite loss does: stop, skip the update, or warn.

Reading a number makes the host wait for the device. Where host and device share
memory that costs a microsecond, so each loss is checked before its update. Elsewhere
`skip` has to wait at every step, and `stop` and `warn` look only when `flush` is
called: at log points and before a save, where the host waits anyway. A run may so do
some updates with a bad loss, but it never saves their result.
"""

from __future__ import annotations

import logging
import math
from typing import Any

import torch
from torch import Tensor, nn

from devrun.dist import all_reduce_max, get_dist_info
from devrun.errors import ConfigError, DivergedError, nearest

__all__ = ["ACTIONS", "MAX_SKIPPED_IN_A_ROW", "FiniteGuard"]

ACTIONS = ("stop", "skip", "warn", "ignore")
MAX_SKIPPED_IN_A_ROW = 50
"""After so many skipped updates one after the other, a skipping run stops too."""

_FOLD_AT = 64
_REMEDY = (
    "lower the learning rate, add grad_clip, look at the inputs, or set "
    "nonfinite to 'skip' or 'warn'"
)

logger = logging.getLogger("devrun")


class FiniteGuard:
    """Watches the losses of one run.

    Args:
        action: one of `ACTIONS`.
        host_shared: reading a loss costs nothing, so read each.
    """

    def __init__(self, action: str, *, host_shared: bool) -> None:
        if action not in ACTIONS:
            hint = nearest(action, ACTIONS)
            raise ConfigError(f"no nonfinite policy {action!r}; {hint}")
        self.action = action
        self.immediate = host_shared or action == "skip"
        self.agree = get_dist_info()[1] > 1
        self._pending: list[Tensor] = []
        self._skipped = 0
        self._in_a_row = 0
        self._warned = 0

    @property
    def reads_plainly(self) -> bool:
        """Whether a caller may test each value itself, and only then ask `blocks`."""
        return self.immediate and self.action != "skip" and not self.agree

    def blocks(self, loss: Tensor) -> bool:
        """Whether the update of this loss must not be done.

        Raises:
            DivergedError: by policy `stop`, before the update.
        """
        if not self.immediate:
            self._remember(loss)
            return False
        value: Any = loss.tolist()
        bad = value - value != 0  # true for nan and both infinities
        if self.agree:  # all ranks leave out the same update, or none does
            bad = all_reduce_max(float(bad)) > 0
        if not bad:
            self._in_a_row = 0
            return False
        mine = value - value != 0
        return self._found(
            f"the loss is {value}" if mine else "the loss of another rank is not finite"
        )

    def blocks_norm(self, norm: Tensor) -> bool:
        """As `blocks`, for the total gradient norm that clipping measured."""
        if not self.immediate:
            self._remember(norm)
            return False
        value: Any = norm.tolist()
        if value - value == 0:
            return False
        return self._found(f"the gradient norm is {value}")

    def flush(self, model: nn.Module | None = None) -> None:
        """Look at everything not looked at yet, and at the weights of `model`.

        Raises:
            DivergedError: unless the policy is `warn` or `ignore`.
        """
        if self.action == "ignore":
            return
        pending, self._pending = self._pending, []
        if pending and not math.isfinite(torch.stack(pending).sum().item()):
            self._report(
                "a loss or gradient norm since the last check was nan or infinite"
            )
        if model is not None and (name := _first_bad_parameter(model)):
            self._report(f"parameter {name!r} has nan or infinite values")

    def _remember(self, value: Tensor) -> None:
        # times 0: stays 0 for a finite number, else nan; a sum cannot overflow
        self._pending.append(value.detach().float() * 0)
        if len(self._pending) >= _FOLD_AT:
            self._pending = [torch.stack(self._pending).sum()]

    def _found(self, what: str) -> bool:
        if self.action == "skip":
            self._skipped += 1
            self._in_a_row += 1
            if self._in_a_row >= MAX_SKIPPED_IN_A_ROW:
                raise DivergedError(
                    f"{what}, and {self._in_a_row} updates in a row were skipped for "
                    "it: lower the learning rate, add grad_clip or look at the inputs"
                )
            logger.warning(
                "%s: update skipped (%d so far, %d in a row)",
                what,
                self._skipped,
                self._in_a_row,
            )
            return True
        self._report(what)
        return False

    def _report(self, what: str) -> None:
        if self.action != "warn":
            raise DivergedError(f"{what}; {_REMEDY}")
        self._warned += 1
        if self._warned & (self._warned - 1) == 0:  # 1st, 2nd, 4th, 8th, ... time
            logger.warning("%s (seen %d times)", what, self._warned)


def _first_bad_parameter(model: nn.Module) -> str | None:
    named = [
        (name, parameter.detach())
        for name, parameter in model.named_parameters()
        if parameter.requires_grad
        and (parameter.is_floating_point() or parameter.is_complex())
    ]
    if not named:
        return None
    # one transfer for all of them: each .item() would wait for the device
    good = torch.stack([torch.isfinite(value).all() for _, value in named]).tolist()
    return next(
        (name for (name, _), ok in zip(named, good, strict=True) if not ok), None
    )
