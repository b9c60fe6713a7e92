"""What happened, how often and at which line of the user's code."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from habana_frameworks._emulation.bus import BUS, EventId
from habana_frameworks._emulation.settings import SETTINGS
from habana_frameworks._emulation.sites import Site, user_site
from habana_frameworks._emulation.torch_private import is_traced

HOST_SYNC = "host_sync"
CPU_FALLBACK = "cpu_fallback"
DYNAMIC_OP = "dynamic_op"
COMPILATION = "compilation"
PYTHON_VALUE = "python_value"
FLOAT64 = "float64"
INT64 = "int64"
GRAPH_SKIPPED = "graph_skipped"


@dataclass
class Finding:
    """One line of user code that did one kind of thing, `count` times.

    `nbytes` is what went between device and host because of it; `visits` how often the
    device had launched something since the time before.
    """

    kind: str
    what: str
    site: Site
    count: int = 0
    nbytes: int = 0
    visits: int = 0
    launches: int = -1


class Recorder:
    """Totals, and findings by (kind, what, site)."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forget all counts; compiled graphs stay compiled."""
        self.findings: dict[tuple[str, str, Site], Finding] = {}
        self.totals: Counter[str] = Counter()
        self.fallbacks: Counter[str] = Counter()

    def note(
        self, kind: str, what: str, nbytes: int = 0, site: Site | None = None
    ) -> None:
        """Count one event at `site`, or at the user's line that is running."""
        if is_traced():
            return  # a compiler tries out the program, on constants of it
        site = site or user_site(kind == CPU_FALLBACK)
        key = (kind, what, site)
        finding = self.findings.get(key)
        if finding is None:
            finding = self.findings[key] = Finding(kind, what, site)
        finding.count += 1
        finding.nbytes += nbytes
        finding.visits += finding.launches != self.totals["launch"]
        finding.launches = self.totals["launch"]
        self.totals[kind] += 1

    def fallback(self, name: str, nbytes: int) -> None:
        """An operator without an HPU kernel ran on the host."""
        self.note(CPU_FALLBACK, name, nbytes)
        self.fallbacks[name] += 1
        BUS.publish(EventId.CPU_FALLBACK, [("op_name", name)])

    def compilation(self, reason: str, recipe: str, num_ops: int, site: Site) -> None:
        """A graph not seen before was compiled."""
        self.note(COMPILATION, reason, site=site)
        if SETTINGS.cache_metrics:
            BUS.publish(EventId.CACHE_MISS, [("recipe_id", recipe)])
        # One microsecond an operator: a placeholder for a duration nobody measured.
        BUS.publish(
            EventId.GRAPH_COMPILATION,
            [("duration", str(max(1, num_ops))), ("recipe", recipe)],
        )

    def cache_hit(self, recipe: str) -> None:
        """A graph was found in the cache."""
        self.totals["cache_hit"] += 1
        if SETTINGS.cache_metrics:
            BUS.publish(EventId.CACHE_HIT, [("recipe_id", recipe)])


RECORDER = Recorder()
