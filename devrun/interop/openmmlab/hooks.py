"""Hooks that configs of packages on MMCV 1.x name, on devrun's runner.

The runner is devrun's, so a name of MMCV's own hooks means devrun's hook of that name,
which has its arguments. Here are those that mean something else, and those that the
packages add.
"""

from __future__ import annotations

import functools
import itertools
from typing import Any

import torch
from torch.nn.modules.batchnorm import _BatchNorm

from devrun.config.numbers import whole_number
from devrun.construct import Buildable
from devrun.data import rng
from devrun.dist import allreduce_params
from devrun.errors import ConfigError
from devrun.hooks import ema
from devrun.hooks.base import Hook
from devrun.registry import HOOKS
from devrun.run import Run
from devrun.step import Capability, MicroBatches


class EMAHook(ema.EMAHook):
    """MMCV's: averaged only every `interval` updates, with `momentum ** interval`.

    As there, buffers are not averaged. Checkpoints hold both sets of weights, whatever
    the priority; `devrun test` takes the averaged ones.
    """

    def __init__(
        self,
        momentum: float = 0.0002,
        interval: int = 1,
        warm_up: int = 100,
        resume_from: str | None = None,
    ) -> None:
        super().__init__(momentum, interval, warm_up, resume_from)
        self.momentum = momentum**interval


class PreciseBNHook(Hook):
    """Replaces BatchNorm statistics after an epoch by their mean over training batches.

    The weights stand still meanwhile: Wu and Johnson, Rethinking "Batch" in BatchNorm,
    https://arxiv.org/abs/2105.07576, section 3; the hook of MMClassification.

    Args:
        num_samples: as many samples are looked at, in whole batches, of all processes.
        interval: epochs from one time to the next.
    """

    requires = frozenset({Capability.HOST_WEIGHTS})  # a graph keeps its statistics

    def __init__(self, num_samples: int = 8192, interval: int = 1) -> None:
        self.num_samples = whole_number("num_samples", num_samples)
        self.interval = whole_number("interval", interval)

    def before_run(self, runner: Run) -> None:
        if runner.max_epochs is None:
            raise ConfigError("PreciseBNHook works after epochs: give an epoch runner")

    def after_train_epoch(self, runner: Run) -> None:
        layers = [
            layer
            for layer in runner.model.modules()
            if isinstance(layer, _BatchNorm) and layer.training
        ]
        if not (layers and self.every_n_epochs(runner, self.interval)):
            return
        size = runner.data_loader.samples_per_update or 1
        count = min(self.num_samples // size, len(runner.data_loader))
        if count == 0:
            return
        runner.logger.info("PreciseBNHook: %d layers, %d batches", len(layers), count)
        with rng.preserved():
            self._replace(runner, layers, count)

    @torch.no_grad()
    def _replace(self, runner: Run, layers: list[Any], count: int) -> None:
        momenta = [layer.momentum for layer in layers]
        try:
            for layer in layers:
                layer.reset_running_stats()
                layer.momentum = None  # torch's word for the mean of all batches
            for batch in _batches(runner.data_loader, runner.epoch, count):
                runner.eval_step(batch, "train")  # seen as in training
        finally:
            for layer, momentum in zip(layers, momenta):
                layer.momentum = momentum
        allreduce_params([v for m in layers for v in (m.running_mean, m.running_var)])


def _batches(loader: Any, epoch: int, count: int) -> Any:
    """The first `count` batches of the epoch once more, part by part."""
    loader.set_epoch(epoch)
    loader.start_at(0)
    for update in itertools.islice(loader, count):
        yield from update if isinstance(update, MicroBatches) else (update,)


OWN: dict[str, Buildable] = {hook.__name__: hook for hook in (EMAHook, PreciseBNHook)}
"""What means something else there than devrun's hook of that name, or is not here."""


_READERS = ("NumClassCheckHook", "SetEpochInfoHook", "SyncNormHook")
"""Hooks of packages that only look at what devrun's runner has too: epoch, model,
loader and logger."""


def find(name: str, theirs: Any) -> Buildable | None:
    """The hook that `name` means within a config of theirs."""
    own = OWN.get(name) or HOOKS.get(name)
    if own is None and theirs is not None and name in _READERS:
        return _on_devrun(theirs)
    return own


@functools.lru_cache(maxsize=None)
def _on_devrun(theirs: type) -> Buildable:
    """Their hook as one of devrun's, which has the stages that MMCV's does not."""
    return type(theirs.__name__, (theirs, Hook), {})
