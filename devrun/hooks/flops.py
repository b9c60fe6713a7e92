"""`FlopsHook`: the FLOPs of an update, counted by torch while the first one runs."""

from __future__ import annotations

from typing import Any

from torch.utils.flop_counter import FlopCounterMode

from devrun.hooks.base import Hook, Priority
from devrun.registry import HOOKS
from devrun.run import Run
from devrun.step import Capability

_UNITS = ("", "k", "M", "G", "T", "P", "E")


@HOOKS.register_module()
class FlopsHook(Hook):
    """Counts matrix products and convolutions, forward and backward.

    A compiled model runs this one update as it is written. With `micro_batch: auto`
    attempts that ran out of memory are counted too.
    """

    requires = frozenset({Capability.GRAD_ACCESS})
    priority: Any = Priority.HIGHEST  # of what others do around a step, least is seen

    def __init__(self) -> None:
        self.flops: int | None = None
        """Of an update of this process; None before the first."""
        self._mode: FlopCounterMode | None = None

    def before_train_iter(self, runner: Run) -> None:
        if self.flops is None:
            self._mode = FlopCounterMode(display=False)
            self._mode.__enter__()

    def after_train_iter(self, runner: Run) -> None:
        if self._mode is not None:
            self.flops = self._stop(self._mode)
            runner.logger.info("FLOPs: %s in an update", _short(self.flops))

    def on_exception(self, runner: Run, exception: BaseException) -> None:
        if self._mode is not None:
            self._stop(self._mode)

    def _stop(self, mode: FlopCounterMode) -> int:
        self._mode = None
        mode.__exit__(None, None, None)
        return int(mode.get_total_flops())


def _short(number: float) -> str:
    """Three digits and a prefix: `1.23 GFLOP`."""
    power = 0
    while number >= 999.5 and power < len(_UNITS) - 1:
        number, power = number / 1000, power + 1
    return f"{number:.3g} {_UNITS[power]}FLOP"
