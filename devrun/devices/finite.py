"""What a bad loss does: NaN, infinite, or far above those before it.

Reading a number makes the host wait for the device. Where host and device share
memory that costs a microsecond, so each loss is checked before its update. Elsewhere
`skip` has to wait at every step, and the others look only when `flush` is called:
at log points and before a save, where the host waits anyway. A run may so do some
updates with a bad loss, but it never saves their result.
"""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Mapping
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn

from devrun.dist import all_reduce_max, gather_objects, get_dist_info
from devrun.errors import DivergedError, RollbackError
from devrun.models.finite import not_finite

MAX_SKIPPED_IN_A_ROW = 50
"""After so many skipped updates one after the other, a skipping run stops too."""

_UNREAD = 1024
_REMEDY = (
    "; lower the learning rate, add grad_clip, look at the inputs, or set "
    "nonfinite to 'skip' or 'warn'"
)

logger = logging.getLogger("devrun")


class SpikeDetector:
    """A loss is a spike when its robust z-score in the last `window` losses is high.

    The modified z-score of Iglewicz and Hoaglin, "How to Detect and Handle Outliers"
    (1993): (loss - median) / (1.4826 * MAD), where MAD is the median distance from
    the median, and 1.4826 makes that the standard deviation of normal noise. Only
    losses above all others of the window are looked at. A scale of less than a
    hundredth of the median counts as that, so that a smooth curve raises no alarms.

    Args:
        window: losses to compare with.
        threshold: z-score from which a loss is a spike.
        least: losses there must be before any is judged.
    """

    def __init__(
        self, window: int = 128, threshold: float = 10.0, least: int = 32
    ) -> None:
        self.threshold, self.least = threshold, least
        self._losses: deque[float] = deque(maxlen=window)

    def score(self, loss: float) -> float | None:
        """The z-score of a finite `loss` if that is a spike; else it joins the window
        and None is returned."""
        known = self._losses
        if len(known) >= self.least and loss > max(known):
            middle = median(known)
            spread = median(abs(value - middle) for value in known)
            scale = max(1.4826 * spread, 0.01 * abs(middle), 1e-12)
            if (score := (loss - middle) / scale) > self.threshold:
                return score
        known.append(loss)
        return None

    def state_dict(self) -> dict[str, Any]:
        """The losses of the window."""
        return {"losses": list(self._losses)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take back what `state_dict` gave."""
        self._losses.clear()
        self._losses.extend(map(float, state["losses"]))


class FiniteGuard:
    """Watches the losses of one run.

    Args:
        action: one of `devrun.step.NONFINITE`.
        host_shared: reading a loss costs nothing, so read each.
        spike: `action` and the arguments of a `SpikeDetector`; None looks for none.
    """

    def __init__(
        self,
        action: str,
        *,
        host_shared: bool,
        spike: Mapping[str, Any] | None = None,
    ) -> None:
        self.action = action
        settings = dict(spike or {})
        self.on_spike = settings.pop("action", None)
        self.spikes = None if spike is None else SpikeDetector(**settings)
        self.immediate = host_shared or "skip" in (action, self.on_spike)
        self._unread: list[Tensor] = []  # for the detector
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
                if self.spikes is not None:
                    self._unread.append(loss.detach())
                    if len(self._unread) >= _UNREAD:
                        self._flush_spikes()
                return False
            value = loss.tolist()
        bad = mine = not math.isfinite(value)
        if self.agree:  # all ranks leave out the same update, or none does
            bad = all_reduce_max(float(bad)) > 0
        if not bad:
            if self.spikes is not None:
                if self._judge(all_reduce_max(value) if self.agree else value):
                    return True
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
            value = norm.tolist()
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
        if self.agree and self.action == "rollback":  # all ranks go back, or none
            bad = all_reduce_max(float(bad)) > 0
        if bad:
            self._unread = []
            self._report(
                "a loss or gradient norm since the last check was nan or infinite"
            )
        if model is not None and (name := not_finite(model)):
            self._report(f"{name} has nan or infinite values")
        if self.spikes is not None:
            self._flush_spikes()

    def _flush_spikes(self) -> None:
        unread, self._unread = self._unread, []
        values = torch.stack(unread).float().cpu().tolist() if unread else []
        if self.agree:
            values = [max(ranks) for ranks in zip(*gather_objects(values))]
        for value in values:
            if math.isfinite(value):
                self._judge(value)

    def _judge(self, value: float) -> bool:
        score = None if self.spikes is None else self.spikes.score(value)
        if score is None:
            return False
        return self._found(
            f"the loss is {value:.4g}, {score:.1f} times its usual spread above what "
            "it was before",
            self.on_spike,
        )

    def _remember(self, value: Tensor) -> None:
        # times 0: stays 0 for a finite number, else nan; a sum cannot overflow
        if self._pending is None:
            self._pending = value.detach().float() * 0
        else:
            self._pending.add_(value.detach(), alpha=0)

    def _found(self, what: str, action: str | None = None) -> bool:
        if (action or self.action) == "skip":
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
        self._report(what, action)
        return False

    def _report(
        self, what: str, action: str | None = None, remedy: str = _REMEDY
    ) -> None:
        action = action or self.action
        if action == "rollback":
            raise RollbackError(what)
        if action not in ("warn", "ignore"):
            raise DivergedError(f"{what}{remedy}")
        self._warned += 1
        if self._warned & (self._warned - 1) == 0:  # 1st, 2nd, 4th, 8th, ... time
            logger.warning("%s (seen %d times)", what, self._warned)
