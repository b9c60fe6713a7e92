"""`SyncBuffersHook`: the same buffers on every process."""

from __future__ import annotations

from torch import nn

from devrun.dist import allreduce_params, broadcast_tensors
from devrun.hooks.base import Hook
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
            allreduce_params(runner.model.buffers())


def share_statistics(model: nn.Module) -> None:
    """Give all processes the BatchNorm statistics of the first one."""
    statistics = (
        buffer
        for module in model.modules()
        if getattr(module, "track_running_stats", False)
        for buffer in module.buffers(recurse=False)
    )
    broadcast_tensors(statistics)
