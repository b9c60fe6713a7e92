"""The data alone: samples a second, and what of a sample takes the time."""

from __future__ import annotations

import cProfile
import inspect
import os
from collections.abc import Iterable, Iterator
from time import perf_counter
from typing import Any

from devrun.checkpoint import host_rng_state, set_host_rng_state
from devrun.hooks.base import Priority
from devrun.probes.finding import Finding
from devrun.probes.probe import Probe, Training
from devrun.probes.sites import defined
from devrun.run import Run

_SHARE = 0.5
"""Of the time of an update, from which the wait for its samples is worth a word."""
_LEAST = 0.005
"""Seconds of an update's samples below which it never is."""
_SAMPLES, _SECONDS = 64, 1.0
"""Samples and seconds that are read at the most."""
_NAMED = 3
_INNER = (
    "dataset", "datasets", "pipeline", "transform", "transforms", "target_transform",
)  # fmt: skip
"""Attributes of data sets, and of what is around them, in which transforms are."""
_WORK = ("__call__", "__getitem__", "forward")
"""Methods that do the work of a transform or a data set."""


class LoadingProbe(Probe):
    """Reads samples of the training set once the updates are over.

    The update's time is that of this machine: it is compared where no emulator runs it.
    """

    priority = Priority.HIGHEST

    def before(self, cfg: Any) -> None:
        data = cfg.get("data") or {}
        own = data.get("train_dataloader") or {}
        self._workers = own.get("workers_per_gpu", data.get("workers_per_gpu", 0)) or 0

    def built(self, training: Training) -> None:
        self._seconds, self._samples, self._updates = 0.0, 0, 0
        training.runner.register_hook(self)

    def before_train_iter(self, runner: Run) -> None:
        self._start = perf_counter()  # once the batch is there

    def after_train_iter(self, runner: Run) -> None:
        if runner.iter:  # the first takes longer
            self._seconds += perf_counter() - self._start
            self._samples += int(runner.outputs["num_samples"])
            self._updates += 1

    def after(self, training: Training) -> Iterable[Finding]:
        dataset = getattr(training.loaders[0], "dataset", None)
        if not hasattr(dataset, "__getitem__") or not hasattr(dataset, "__len__"):
            return ()
        each, shares = _sample_time(dataset)
        if not each:
            return ()
        self.note.fact("samples a second, one process", round(1 / each, 1))
        self.note.fact("slowest transforms, share of a sample", shares)
        judged = not self.request.emulated and self._updates
        return self._judged(each, shares, dataset) if judged else ()

    def _judged(
        self, each: float, shares: dict[str, float], dataset: Any
    ) -> Iterator[Finding]:
        update = self._seconds / self._updates
        needed = each * self._samples / self._updates
        wait = needed / max(self._workers, 1)
        if wait < _LEAST or wait < _SHARE * update:
            return
        processes = min(int(needed / update) + 1, len(os.sched_getaffinity(0)))
        if processes <= self._workers:
            remedy = "make the slowest transform cheaper, or keep what it gives on disk"
            fix = None
        else:
            remedy = f"data.workers_per_gpu: {processes}"
            fix = {"data.workers_per_gpu": processes}
        kinds = {_name(one): type(one) for one in _transforms_of(dataset)}
        slowest, share = next(iter(shares.items()), ("", 1.0))
        kind = kinds.get(slowest, type(dataset))
        work = (getattr(kind, name, None) for name in _WORK)
        yield Finding(
            severity="slow",
            kind="data",
            what=kind.__name__,
            why=f"the samples of an update take {needed * 1e3:.0f} ms of one process, "
            f"the update {update * 1e3:.0f} ms here; {kind.__name__} takes "
            f"{share:.0%} of a sample",
            remedy=remedy,
            site=next(filter(None, map(defined, work)), None),
            fix=fix,
        )


def _sample_time(dataset: Any) -> tuple[float, dict[str, float]]:
    """Seconds of a sample, and the slowest transforms' shares; "" for the rest.

    Samples are spread over the data set. The random streams of this process are put
    back; one that the data set has for itself is not, so it is asked for after a run.
    """
    stride = max(len(dataset) // _SAMPLES, 1)
    state, count = host_rng_state(), 0
    profile = cProfile.Profile()
    start = perf_counter()
    try:
        profile.enable()
        for index in range(0, len(dataset), stride):
            count += 1
            try:
                dataset[index]
            except Exception:  # noqa: BLE001 - the run tells of it
                count -= 1
            if count == _SAMPLES or perf_counter() - start > _SECONDS:
                break
    finally:
        profile.disable()
        set_host_rng_state(state)
    total = perf_counter() - start
    if not count or not total:
        return 0.0, {}
    works = {_code(one): _name(one) for one in _transforms_of(dataset)}
    spent = {
        works[entry.code]: entry.totaltime
        for entry in profile.getstats()
        if entry.code in works
    }
    spent[""] = max(total - sum(spent.values()), 0.0)
    slowest = sorted(spent.items(), key=lambda item: -item[1])[:_NAMED]
    return total / count, {name: round(part / total, 3) for name, part in slowest}


def _transforms_of(dataset: Any, depth: int = 4) -> list[Any]:
    """What is called on each sample of `dataset`, as far as it shows; maybe nothing."""
    if isinstance(dataset, (list, tuple)):
        return [one for entry in dataset for one in _transforms_of(entry, depth)]
    own = getattr(dataset, "__dict__", {})
    inner = [own[name] for name in _INNER if own.get(name) is not None]
    if inner and depth:
        return _transforms_of(inner, depth - 1)
    return [dataset] if callable(dataset) else []


def _name(transform: Any) -> str:
    return str(getattr(transform, "__name__", type(transform).__name__))


def _code(transform: Any) -> Any:
    """Of the function that does the work of `transform`; None if that is not Python."""
    methods = (getattr(type(transform), name, None) for name in ("forward", "__call__"))
    for function in (transform, *methods):
        if inspect.isfunction(function):
            return function.__code__
    return None
