"""`EmptyCacheHook`: gives cached device memory back at chosen points."""

from __future__ import annotations

from devrun.hooks.base import GENERIC, Hook
from devrun.registry import HOOKS
from devrun.run import Run


@HOOKS.register_module()
class EmptyCacheHook(Hook):
    """Asks the device to empty its memory cache, where it has one.

    Args:
        before_epoch, after_epoch, after_iter: where to do it, in train and in val.
    """

    def __init__(
        self,
        before_epoch: bool = False,
        after_epoch: bool = True,
        after_iter: bool = False,
    ) -> None:
        self._wanted = {
            "before_epoch": before_epoch,
            "after_epoch": after_epoch,
            "after_iter": after_iter,
        }

    def before_epoch(self, runner: Run) -> None:
        self._empty(runner, "before_epoch")

    def after_epoch(self, runner: Run) -> None:
        self._empty(runner, "after_epoch")

    def after_iter(self, runner: Run) -> None:
        self._empty(runner, "after_iter")

    def get_triggered_stages(self) -> list[str]:
        """Only the stages that were asked for, so that the others cost nothing."""
        idle = {
            stage
            for point, wanted in self._wanted.items()
            if not wanted
            for stage in GENERIC[point]
        }
        return [stage for stage in super().get_triggered_stages() if stage not in idle]

    def _empty(self, runner: Run, point: str) -> None:
        if self._wanted[point]:
            runner.adapter.empty_cache()
