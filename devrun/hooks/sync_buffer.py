"""`SyncBuffersHook`: the same buffers on every process."""

from __future__ import annotations

from devrun.dist import allreduce_params
from devrun.hooks.base import Hook
from devrun.parallel.copies import replicas_of
from devrun.registry import HOOKS
from devrun.run import Run


@HOOKS.register_module()
class SyncBuffersHook(Hook):
    """Averages the model's buffers, such as BatchNorm statistics, after each epoch.

    Args:
        distributed: False switches it off.
    """

    def __init__(self, distributed: bool = True) -> None:
        self.distributed = distributed

    def after_epoch(self, runner: Run) -> None:
        if self.distributed:
            model = runner.model
            allreduce_params(model.buffers(), group=replicas_of(model))
