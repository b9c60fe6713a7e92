"""Hooks that keep the processes of a run together: buffers, samplers, the end."""

from __future__ import annotations

from time import perf_counter
from typing import Any

from torch import nn

from devrun.dist import allreduce_params, broadcast_tensors, gather_objects
from devrun.hooks.base import Hook, Priority
from devrun.registry import HOOKS
from devrun.run import Run

MOST = 1000
"""Iterations from one look to the next, however fast they are."""


@HOOKS.register_module()
class StopTogetherHook(Hook):
    """Ends the run on all ranks when a signal has reached some of them.

    A rank that left the loop by itself would leave the others waiting for it in their
    next exchange. So the ranks ask each other: after so many iterations as take the
    slowest of them about `seconds`, which each works out from the same answers, and
    at the end of every epoch. Runners of several processes register this themselves.
    """

    priority: Any = Priority.LOWEST

    def __init__(self, seconds: float = 1.0) -> None:
        self.seconds = seconds
        self._left = self._span = 1
        self._since = 0.0

    def before_run(self, runner: Run) -> None:
        self._left = self._span = 1
        self._since = perf_counter()

    def after_train_iter(self, runner: Run) -> None:
        self._left -= 1
        if self._left == 0:
            self._ask(runner)

    def after_train_epoch(self, runner: Run) -> None:
        self._ask(runner)

    def after_val_epoch(self, runner: Run) -> None:
        self._ask(runner)

    def _ask(self, runner: Run) -> None:
        done = self._span - self._left
        pace = (perf_counter() - self._since) / max(done, 1)
        wanted = runner.stop_wanted
        mine = (wanted is not None, pace)
        stops, paces = zip(*gather_objects(mine))
        self._left = self._span = min(max(int(self.seconds / max(paces)), 1), MOST)
        self._since = perf_counter()
        if any(stops):
            reasons = gather_objects(wanted)
            runner.request_stop(next(r for r in reasons if r is not None))


@HOOKS.register_module()
class DistSamplerSeedHook(Hook):
    """Calls `set_epoch` of the loader, its sampler and its batch sampler.

    Without it a sampler such as torch's DistributedSampler gives the same order in
    every epoch. The loaders that devrun prepares do this themselves; the hook is for
    samplers of one's own, and calling `set_epoch` twice changes nothing.
    """

    def before_epoch(self, runner: Run) -> None:
        loader = runner.data_loader  # None in an iteration runner that has not begun
        batch_sampler = getattr(loader, "batch_sampler", None)
        for owner in (
            loader,
            getattr(loader, "sampler", None),
            batch_sampler,
            getattr(batch_sampler, "sampler", None),
        ):
            if owner is not None and hasattr(owner, "set_epoch"):
                owner.set_epoch(runner.epoch)


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
