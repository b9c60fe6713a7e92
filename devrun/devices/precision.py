"""What `precision` and `loss_scale` of a policy mean on an eager device."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from devrun.devices.finite import MAX_SKIPPED_IN_A_ROW
from devrun.errors import ConfigError, UnsupportedFeatureError
from devrun.step import UpdatePolicy
from devrun.torch_features import GradScaler, autocasts, needs

AUTOCAST_DTYPES: Mapping[str, torch.dtype | None] = {
    "fp32": None,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
}


WARN_AFTER = 10
"""Updates left out in a row before the first warning; then at each doubling."""
_UNREAD = 1024

logger = logging.getLogger("devrun")


def autocast_for(
    precision: str, device_type: str
) -> contextlib.AbstractContextManager[Any] | None:
    """The context of a forward pass, enterable again and again; None for fp32.

    Raises:
        UnsupportedFeatureError: a precision that is not one of `AUTOCAST_DTYPES`, or
            autocast changes nothing on the device.
    """
    if precision not in AUTOCAST_DTYPES:
        raise UnsupportedFeatureError(
            f"precision {precision!r} cannot run on device {device_type!r}; use one of "
            f"{', '.join(AUTOCAST_DTYPES)}",
            key="precision",
        )
    dtype = AUTOCAST_DTYPES[precision]
    if dtype is None:
        return None
    if device_type == "cpu" and dtype is torch.float16:
        needs("2.3", "precision 'fp16' on a CPU", "precision")
    if not autocasts(device_type):
        raise UnsupportedFeatureError(
            f"precision {precision!r} would change nothing on device {device_type!r}, "
            "whose plug-in has no autocast for linear layers; use fp32",
            key="precision",
        )
    return torch.autocast(device_type, dtype=dtype)


class LossScaler(GradScaler):
    """torch's, with a factor that may also stay fixed, and a count of what it left out.

    An update left out because scaled gradients overflowed is part of the search for a
    factor, not a sign of divergence. Many in a row are a scale that no gradient of this
    model fits under, and a run that trains nothing. A flag is read at once only where
    that costs nothing, else when the host waits anyway.

    Args:
        host_shared: reading a flag costs nothing, so read each.
        give_up: does what the policy for losses that are not finite asks for, given
            what happened; it may raise, and is asked again after as many more.

    Raises:
        ConfigError: arguments that `torch.amp.GradScaler` does not know.
    """

    def __init__(
        self,
        policy: UpdatePolicy,
        device_type: str,
        *,
        host_shared: bool,
        give_up: Callable[[str], None],
    ) -> None:
        arguments = policy.scaler_arguments
        try:
            super().__init__(device_type, **arguments)
        except (TypeError, AssertionError) as error:
            raise ConfigError(
                f"loss_scale {arguments!r} is not for GradScaler: {error}; accepted: "
                "init_scale, growth_factor, backoff_factor, growth_interval"
            ) from error
        self.left_out = 0
        """Updates."""
        self._fixed = policy.fixed_scale
        self._host_shared, self._give_up = host_shared, give_up
        self._in_a_row = 0
        self._unread: list[Tensor] = []

    def step(self, optimizer: Any) -> None:
        """Update unless a gradient overflowed, then adapt the factor."""
        found = list(self._found_inf_per_device(optimizer).values())
        if found:
            self._unread.append(sum(found[1:], found[0]))
        if self._host_shared or len(self._unread) >= _UNREAD:
            self.flush()
        super().step(optimizer)
        self.update(self._fixed)

    def flush(self) -> None:
        """Take in the flags that were not read yet."""
        flags, self._unread = self._unread, []
        for flag in torch.stack(flags).cpu().tolist() if flags else ():
            self._take(bool(flag))

    def _take(self, overflowed: bool) -> None:
        self._in_a_row = self._in_a_row + 1 if overflowed else 0
        if not overflowed:
            return
        self.left_out += 1
        row = self._in_a_row
        what = (
            f"{row} updates in a row were left out: gradients overflow at the loss "
            f"scale {self.get_scale():.4g}, so nothing is trained; lower loss_scale "
            "(or its init_scale), or set precision to bf16"
        )
        doubled, rest = divmod(row, WARN_AFTER)
        if row % MAX_SKIPPED_IN_A_ROW == 0:
            self._give_up(what)
        elif not rest and doubled & (doubled - 1) == 0:
            logger.warning("%s (%d so far)", what, self.left_out)
