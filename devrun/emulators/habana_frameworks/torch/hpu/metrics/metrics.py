"""Metrics: counters that listen to events between `start` and `stop`."""

from __future__ import annotations

import atexit
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, List, Tuple

from habana_frameworks._emulation.bus import BUS, EventId, Params
from habana_frameworks._emulation.settings import SETTINGS
from habana_frameworks.torch.hpu.metrics.exceptions import MetricNotFound
from habana_frameworks.torch.hpu.metrics.saver import Saver, write_metrics

Stats = List[Tuple[str, Any]]


class Metric:
    """A counter; `stats` is a list of (tag, value)."""

    events: tuple[EventId, ...] = ()
    title = ""

    def __init__(self) -> None:
        self._handles: list[tuple[EventId, int]] = []
        self.changed: Callable[[Metric], None] | None = None
        self.reset()
        self.start()

    def name(self) -> str:
        """The name to ask for it by."""
        return self.title

    def stats(self) -> Stats:
        """What was counted."""
        raise NotImplementedError

    def reset(self) -> None:
        """Count from zero."""
        raise NotImplementedError

    def count(self, event: EventId, params: dict[str, str]) -> None:
        """Take one event into account."""
        raise NotImplementedError

    def start(self) -> None:
        """Listen; harmless while listening."""
        if not self._handles:
            self._handles = [
                BUS.subscribe(event, self._listener(event)) for event in self.events
            ]

    def stop(self) -> None:
        """Stop listening."""
        while self._handles:
            BUS.unsubscribe(self._handles.pop())

    def _listener(self, event: EventId) -> Callable[[int, Params], None]:
        def heard(timestamp: int, params: Params) -> None:
            self.count(event, dict(params))
            if self.changed is not None:
                self.changed(self)

        return heard


class GraphCompilation(Metric):
    """Compiled graphs. The times are placeholders: one microsecond an operator."""

    title = "graph_compilation"
    events = (EventId.GRAPH_COMPILATION,)

    def __init__(self) -> None:
        self.recipes: list[tuple[str, int]] = []  # outlives `reset`, as in the SDK
        super().__init__()

    def reset(self) -> None:
        """Count from zero; the recipe list stays."""
        self.number = self.time = 0

    def count(self, event: EventId, params: dict[str, str]) -> None:
        """One compilation."""
        duration = int(params["duration"])
        self.number += 1
        self.time += duration
        if SETTINGS.compile_details:
            self.recipes.append((params["recipe"], duration))

    def stats(self) -> Stats:
        """Number, total and average time."""
        average = self.time / self.number if self.number else 0
        stats: Stats = [
            ("TotalNumber", self.number),
            ("TotalTime", self.time),
            ("AvgTime", average),
        ]
        if SETTINGS.compile_details:
            stats.append(("recipe", list(self.recipes)))
        return stats


class CpuFallback(Metric):
    """Operators that ran on the host."""

    title = "cpu_fallback"
    events = (EventId.CPU_FALLBACK,)

    def reset(self) -> None:
        """Count from zero."""
        self.ops: Counter[str] = Counter()

    def count(self, event: EventId, params: dict[str, str]) -> None:
        """One fallback."""
        self.ops[params["op_name"]] += 1

    def stats(self) -> Stats:
        """Number, and numbers by operator."""
        return [("TotalNumber", self.ops.total()), ("FallbackOps", dict(self.ops))]


class MemoryDefragmentation(Metric):
    """Always zero here: fragmentation is not emulated."""

    title = "memory_defragmentation"
    events = (EventId.MEMORY_DEFRAGMENTATION,)

    def reset(self) -> None:
        """Count from zero."""
        self.number = self.successful = 0
        self.times: list[int] = []

    def count(self, event: EventId, params: dict[str, str]) -> None:
        """One run of the defragmenter."""
        self.number += 1
        if params["success"].lower() in ("1", "true"):
            self.successful += 1
            self.times.append(int(params["milliseconds"]))

    def stats(self) -> Stats:
        """Numbers and times in milliseconds."""
        times = self.times or [0]
        return [
            ("TotalNumber", self.number),
            ("TotalSuccessful", self.successful),
            ("AvgTime", sum(times) / len(times)),
            ("MaxTime", max(times)),
        ]


class RecipeCache(Metric):
    """Hits and misses of the graph cache; needs PT_HPU_ENABLE_CACHE_METRICS=1."""

    title = "recipe_cache"
    events = (EventId.CACHE_HIT, EventId.CACHE_MISS)

    def reset(self) -> None:
        """Count from zero."""
        self.hits: Counter[str] = Counter()
        self.misses: Counter[str] = Counter()

    def count(self, event: EventId, params: dict[str, str]) -> None:
        """One look-up."""
        counter = self.hits if event is EventId.CACHE_HIT else self.misses
        counter[params["recipe_id"]] += 1

    def stats(self) -> Stats:
        """Numbers, and numbers by recipe."""
        return [
            ("TotalHit", self.hits.total()),
            ("RecipeHit", dict(self.hits)),
            ("TotalMiss", self.misses.total()),
            ("RecipeMiss", dict(self.misses)),
        ]


KINDS: dict[str, type[Metric]] = {
    kind.title: kind for kind in (GraphCompilation, CpuFallback, MemoryDefragmentation)
}
if SETTINGS.cache_metrics:
    KINDS[RecipeCache.title] = RecipeCache
_global = {name: kind() for name, kind in KINDS.items()}


def metric_global(name: str) -> Metric | None:
    """The process-wide metric, counting since import; None for an unknown name."""
    return _global.get(name)


@contextmanager
def metric_localcontext(name: str) -> Iterator[Metric]:
    """A metric of its own that counts inside; MetricNotFound for an unknown name."""
    if name not in KINDS:
        raise MetricNotFound(f"Metric with given name ({name}) doesn't exist.")
    metric = KINDS[name]()
    try:
        yield metric
    finally:
        metric.stop()


def metrics_dump(file_name: str, file_format: str = "json") -> None:
    """Write the global metrics to a file now."""
    write_metrics(file_name, file_format, "user", _rows())


def _rows() -> list[tuple[str, Stats]]:
    return [(metric.name(), metric.stats()) for metric in _global.values()]


def _start_saver() -> None:
    saver = Saver.from_environment()
    if saver is None:
        return
    BUS.subscribe(EventId.DEVICE_ACQUIRED, lambda *_: saver.enable())
    BUS.subscribe(EventId.MARK_STEP, lambda *_: saver.trigger("mark_step", _rows()))
    for metric in _global.values():
        metric.changed = lambda changed: saver.trigger(
            "metric_change", [(changed.name(), changed.stats())]
        )
    atexit.register(lambda: saver.trigger("process_exit", _rows()))


_start_saver()
