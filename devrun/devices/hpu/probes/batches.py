"""Batches of many shapes, for each of which a device compiles its graphs again."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from time import perf_counter
from typing import Any

from devrun.checkpoint import host_rng_state, set_host_rng_state
from devrun.config.tree import inside
from devrun.devices.ipu.batch import Flat, ShapesError, differing, flatten
from devrun.probes.finding import Finding
from devrun.probes.keys import line_of, pasted
from devrun.probes.probe import Probe, Training
from devrun.probes.sites import maker_of

FEW = 8
"""Shapes that are compiled soon and then known; as many buckets the remedy makes."""
_BATCHES, _SECONDS = 64, 2.0
"""Those of an epoch's begin, and seconds, that are looked at."""


class BatchShapes(Probe):
    """Reads the training batches alone: a few updates may see few of their shapes."""

    def before(self, cfg: Any) -> None:
        self._line = line_of(cfg, "data.buckets", "data.train")
        self._buckets = inside(cfg, "data.buckets")

    def after(self, training: Training) -> Iterable[Finding]:
        if inside(self._buckets, "sizes") != "longest" and self._buckets is not None:
            return ()  # they are few
        loader = training.loaders[0]
        state = host_rng_state()
        try:
            flats = list(_flats(loader))
        finally:
            set_host_rng_state(state)
        shapes = {flat.shapes: flat for flat in flats}
        self.note.fact("shapes of batches", f"{len(shapes)} in {len(flats)}")
        if len(shapes) <= FEW:
            return ()
        return [self._finding(list(shapes.values()), len(flats), loader)]

    def _finding(self, shapes: list[Flat], count: int, loader: Any) -> Finding:
        first = shapes[0]
        alike = [one for one in shapes[1:] if one.names == first.names]
        different = {each.name: each for one in alike for each in differing(one, first)}
        fix = self._fix(ShapesError("", list(different.values())).fix)

        return Finding(
            severity="slow",
            kind="changing shapes",
            what="batch",
            why=f"{len(shapes)} shapes in {count} batches, as {_sizes(different)}: "
            "graphs are compiled again for each new one",
            remedy=f"{pasted(fix)} makes few of them (docs/bucketing.md)"
            if fix
            else "resize or pad the samples to few sizes (data set, or collate_fn)",
            site=maker_of(loader) or self._line,
            fix=fix,
        )

    def _fix(self, one_shape: dict[str, Any] | None) -> dict[str, Any] | None:
        """The config's keys that make few shapes, of those that make a single one."""
        buckets = (one_shape or {}).get("data.buckets")
        if buckets is None:
            return one_shape
        if self._buckets is None:
            return {"data.buckets": {**buckets, "num": FEW}}
        if isinstance(self._buckets, Mapping):
            return {"data.buckets.sizes": "quantiles", "data.buckets.num": FEW}
        return None


def _flats(loader: Any) -> Iterator[Flat]:
    until = perf_counter() + _SECONDS
    for number, batch in enumerate(loader, 1):
        yield flatten(batch)
        if number == _BATCHES or perf_counter() > until:
            return


def _sizes(different: Any) -> str:
    return ", ".join(
        f"{name} {each.other} and {each.shape}" for name, each in different.items()
    )
