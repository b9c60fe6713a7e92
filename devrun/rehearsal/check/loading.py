"""The data alone: samples a second, and what of a sample takes the time."""

from __future__ import annotations

import inspect
import os
from time import perf_counter
from typing import Any

from devrun.checkpoint import host_rng_state, set_host_rng_state
from devrun.data.counting import spare_cores
from devrun.data.timing import transforms_of, watched
from devrun.hooks.base import Hook, Priority
from devrun.rehearsal.check.findings import Finding
from devrun.rehearsal.check.probe import Probe
from devrun.rehearsal.check.sites import user_line
from devrun.run import Run
from devrun.runners.training import Training

_SHARE = 0.5
"""Of the time of an update, from which the wait for its samples is worth a word."""
_LEAST = 0.005
"""Seconds of an update's samples below which it never is."""
_SAMPLES, _SECONDS = 64, 1.0
"""Samples and seconds that are read at the most."""
_NAMED = 3


class LoadingProbe(Probe):
    """Reads samples of the training set once the updates are over.

    The update's time is that of this machine: it is compared where no emulator runs it.
    """

    def before(self, cfg: Any) -> None:
        data = cfg.get("data") or {}
        own = data.get("train_dataloader") or {}
        given = own.get("workers_per_gpu", data.get("workers_per_gpu", 0)) or 0
        # as many as it takes, where the run finds out itself
        self._workers = spare_cores() if given == "auto" else given

    def built(self, training: Training) -> None:
        self._clock = _Clock()
        training.runner.register_hook(self._clock)

    def after(self, training: Training) -> None:
        dataset = getattr(training.loaders[0], "dataset", None)
        if not hasattr(dataset, "__getitem__") or not hasattr(dataset, "__len__"):
            return
        each, shares = _sample_time(dataset)
        if not each:
            return
        self.note.fact("samples a second, one process", round(1 / each, 1))
        self.note.fact("slowest transforms, share of a sample", shares)
        if not self.request.emulated and self._clock.updates:
            self._judge(each, shares, dataset)

    def _judge(self, each: float, shares: dict[str, float], dataset: Any) -> None:
        update = self._clock.seconds / self._clock.updates
        needed = each * self._clock.samples / self._clock.updates
        wait = needed / max(self._workers, 1)
        if wait < _LEAST or wait < _SHARE * update:
            return
        processes = min(int(needed / update) + 1, os.cpu_count() or 1)
        if processes <= self._workers:
            remedy = "make the slowest transform cheaper, or keep what it gives on disk"
            fix = None
        else:
            remedy = f"data.workers_per_gpu: {processes}"
            fix = {"data.workers_per_gpu": processes}
        kinds = {_name(one): type(one) for one in transforms_of(dataset)}
        slowest, share = next(iter(shares.items()), ("", 1.0))
        kind = kinds.get(slowest, type(dataset))
        self.note.found(
            Finding(
                severity="slow",
                kind="data",
                what=kind.__name__,
                why=f"the samples of an update take {needed * 1e3:.0f} ms of one "
                f"process, the update {update * 1e3:.0f} ms here; {kind.__name__} "
                f"takes {share:.0%} of a sample",
                remedy=remedy,
                site=_defined(kind),
                fix=fix,
            )
        )


def _sample_time(dataset: Any) -> tuple[float, dict[str, float]]:
    """Seconds of a sample, and the slowest transforms' shares; "" for the rest.

    Samples are spread over the data set. The random streams of this process are put
    back; one that the data set has for itself is not, so it is asked for after a run.
    """
    stride = max(len(dataset) // _SAMPLES, 1)
    state, count = host_rng_state(), 0
    start = perf_counter()
    try:
        with watched(transforms_of(dataset)) as spent:
            for index in range(0, len(dataset), stride):
                dataset[index]
                count += 1
                if count == _SAMPLES or perf_counter() - start > _SECONDS:
                    break
    finally:
        set_host_rng_state(state)
    total = sum(spent.values())
    slowest = sorted(spent.items(), key=lambda item: -item[1])[:_NAMED]
    shares = {name: round(seconds / total, 3) for name, seconds in slowest if total}
    return (total / count if count else 0.0), shares


def _name(transform: Any) -> str:
    return str(getattr(transform, "__name__", type(transform).__name__))


class _Clock(Hook):
    """Seconds and samples of the updates, their data apart; the first is left out."""

    priority = Priority.HIGHEST

    def __init__(self) -> None:
        self.seconds = 0.0
        self.samples = 0
        self.updates = 0
        self._start = 0.0

    def before_train_iter(self, runner: Run) -> None:
        self._start = perf_counter()

    def after_train_iter(self, runner: Run) -> None:
        if runner.iter:
            self.seconds += perf_counter() - self._start
            self.samples += int(runner.outputs["num_samples"])
            self.updates += 1


def _defined(kind: type) -> str | None:
    """The line of the user's class that does the work."""
    for name in ("__call__", "__getitem__", "forward"):
        code = getattr(inspect.unwrap(getattr(kind, name, kind)), "__code__", None)
        if code is not None:
            return user_line([(code.co_filename, code.co_firstlineno)])
    return None
