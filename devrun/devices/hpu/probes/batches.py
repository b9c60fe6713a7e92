"""Batches of many shapes, for each of which a device compiles its graphs again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from devrun.config.tree import inside
from devrun.devices.ipu.batch import Flat, ShapesError, differing, flatten
from devrun.hooks.base import Priority
from devrun.probes.finding import Finding
from devrun.probes.keys import line_of, pasted
from devrun.probes.probe import Probe, Training, safely
from devrun.probes.sites import maker_of
from devrun.run import Run
from devrun.step import MicroBatches

FEW = 8
"""Shapes that are compiled soon and then known; as many buckets the remedy makes."""


class BatchShapes(Probe):
    """Looks whether each of the later updates has a batch of a new shape."""

    priority = Priority.HIGHEST

    def before(self, cfg: Any) -> None:
        self._line = line_of(cfg, "data.buckets", "data.train")
        self._buckets = inside(cfg, "data.buckets")

    def built(self, training: Training) -> None:
        self._seen: dict[Any, Flat] = {}
        self._new: list[bool] = []
        """Of each update, whether it had a new shape."""
        training.runner.register_hook(self)

    def before_train_iter(self, runner: Run) -> None:
        safely(self.note, self._look, runner)

    def _look(self, runner: Run) -> None:
        given = runner.data_batch
        batches = given if isinstance(given, MicroBatches) else [given]
        flats = {flat.shapes: flat for flat in map(flatten, batches)}
        self._new.append(not flats.keys() <= self._seen.keys())
        self._seen = {**flats, **self._seen}

    def after(self, training: Training) -> Iterator[Finding]:
        later = self._new[len(self._new) // 2 :]
        few = self._buckets is not None and inside(self._buckets, "sizes") != "longest"
        if len(later) > 1 and all(later) and not few:
            yield self._finding(list(self._seen.values()), training.loaders[0])

    def _finding(self, shapes: list[Flat], loader: Any) -> Finding:
        first = shapes[0]
        alike = [one for one in shapes[1:] if one.names == first.names]
        different = {each.name: each for one in alike for each in differing(one, first)}
        fix = self._fix(ShapesError("", list(different.values())).fix)
        why = (
            f"{len(shapes)} shapes in {len(self._new)} updates, as "
            f"{_sizes(different)}: graphs are compiled again for each new one"
        )
        remedy = "resize or pad the samples to few sizes (data set, or collate_fn)"
        if fix:
            remedy = f"{pasted(fix)} makes few of them (docs/bucketing.md)"
        row = ("changing shapes", "batch", why, remedy, maker_of(loader) or self._line)
        return Finding("slow", *row, fix=fix)

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


def _sizes(different: Any) -> str:
    rows = different.items()
    return ", ".join(f"{name} {one.other} and {one.shape}" for name, one in rows)
