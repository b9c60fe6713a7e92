"""The last batch of an epoch, which a few updates do not come to."""

from __future__ import annotations

import time
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import replace
from typing import Any

from torch.utils.data import IterableDataset

from devrun.config.tree import inside
from devrun.errors import DivergedError
from devrun.hooks.base import Priority
from devrun.probes.finding import MISMATCH, Finding
from devrun.probes.keys import BatchSize
from devrun.probes.probe import Probe, Training
from devrun.probes.workarounds import refusal
from devrun.rehearsal.check.gradient_path import not_finite_at
from devrun.run import Run
from devrun.step import Capability, MicroBatches
from devrun.tensors import batch_size_of

_DROP = "data.train_dataloader.drop_last"
_READ, _SECONDS = 256, 2
"""So many samples are read, for so long."""


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
        loader: Any = training.loaders[0]
        dataset: Any = getattr(loader, "dataset", None)
        adapter, session = training.runner.adapter, training.runner.session
        if self._size is None or not hasattr(dataset, "__len__"):
            return
        if isinstance(dataset, IterableDataset):  # which may say its length
            return
        yield from _unread(dataset)
        whole, left = batch_size_of(self._batch), len(dataset) % self._size.samples
        if self._drops or Capability.DYNAMIC_SHAPES not in adapter.capabilities:
            return
        if not 0 < left < whole or adapter.update.owner is None:  # it is closed
            return
        try:
            batch = loader.collate_fn([dataset[index] for index in range(left)])
            batch = getattr(adapter, "to_device", lambda one: one)(batch)
        except Exception:  # noqa: BLE001 - as it was told of other samples
            return
        session.wrapped.train()
        before = deepcopy(training.runner.model.state_dict())
        try:
            # as the class has it: what it raises is told here
            step = type(adapter).train_step
            with adapter.train_step.past():
                step(adapter, session.wrapped, batch, session.optimizer)
        except Exception as error:  # noqa: BLE001 - the user's own: a finding
            one, seen = refusal(error), self.note.seen.values()
            if one.site in {each.site for each in seen if each.kind == "raises"}:
                return
            if one.kind == MISMATCH:  # a batch of any size meets it
                return
            if isinstance(error, DivergedError):
                training.runner.model.load_state_dict(before)
                one = replace(one, site=not_finite_at(training, batch))
            size, fix, remedy = self._size.samples, {_DROP: True}, f"{_DROP}: true"
            why = f"the last batch of an epoch has {left} of {size} samples: {one.why}"
            yield replace(one, kind="last batch", why=why, remedy=remedy, fix=fix)


def _unread(dataset: Any) -> Iterator[Finding]:
    """What samples raise that no update came to."""
    end = time.monotonic() + _SECONDS
    for index in range(min(len(dataset), _READ)):
        if time.monotonic() > end:
            return
        try:
            dataset[index]
        except Exception as error:  # noqa: BLE001 - the user's own: a finding
            yield refusal(error)
