"""The last batch of an epoch, which a few updates do not come to."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import Tensor

from devrun.config.tree import inside
from devrun.hooks.base import Priority
from devrun.probes.finding import Finding
from devrun.probes.keys import BatchSize
from devrun.probes.probe import Probe, Training
from devrun.probes.sites import of_error
from devrun.run import Run
from devrun.step import Capability, MicroBatches
from devrun.tensors import batch_size_of, map_tensors

_DROP = "data.train_dataloader.drop_last"


class LastBatch(Probe):
    """Makes one more update with as many samples as the last batch has."""

    priority = Priority.HIGHEST

    def before(self, cfg: Any) -> None:
        self._size = BatchSize.of(cfg)
        self._drops = inside(cfg, _DROP) or inside(cfg, "data.drop_last")

    def built(self, training: Training) -> None:
        self._batch: Any = None
        training.runner.register_hook(self)

    def before_train_iter(self, runner: Run) -> None:
        given = runner.data_batch
        self._batch = given[0] if isinstance(given, MicroBatches) else given

    def after(self, training: Training) -> Iterator[Finding]:
        dataset: Any = getattr(training.loaders[0], "dataset", None)
        adapter, session = training.runner.adapter, training.runner.session
        if self._size is None or self._drops or not hasattr(dataset, "__len__"):
            return
        whole, left = batch_size_of(self._batch), len(dataset) % self._size.samples
        if not 0 < left < whole:
            return
        if Capability.DYNAMIC_SHAPES not in adapter.capabilities:
            return

        def cut(tensor: Tensor) -> Tensor:
            return tensor[:left] if tensor.dim() and len(tensor) == whole else tensor

        session.wrapped.train()
        try:
            # as the class has it: what it raises is told here
            step = type(adapter).train_step
            step(
                adapter,
                session.wrapped,
                map_tensors(cut, self._batch),
                session.optimizer,
            )
        except Exception as error:  # noqa: BLE001 - the user's own: a finding
            first = str(error).strip().partition("\n")[0]
            yield Finding(
                severity="breaks",
                kind="last batch",
                what=type(error).__name__,
                why=f"the last batch of an epoch has {left} of {self._size.samples} "
                f"samples: {first}",
                remedy=f"{_DROP}: true",
                site=of_error(error),
                fix={_DROP: True},
            )
