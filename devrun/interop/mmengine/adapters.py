"""Parts of MMEngine that work otherwise on devrun's runner, and what does it there."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from importlib import import_module
from itertools import zip_longest
from typing import Any

from devrun.construct import Buildable
from devrun.dist import gather_objects
from devrun.errors import ConfigError
from devrun.interop.mmengine.hook import EngineHook
from devrun.interop.mmengine.own_hooks import PreciseBNHook, SwitchRecipeHook
from devrun.interop.mmengine.schedulers import ParamSchedulerHook
from devrun.interop.mmengine.step import Stacked
from devrun.metrics import StatefulMetric


class EngineMetric(StatefulMetric):
    """A metric of MMEngine: `process` for each batch, `compute_metrics` for all.

    Names of its results are `prefix/name`, as MMEngine's own evaluator gives them.
    """

    def __init__(self, metric: Any) -> None:
        self.name, self.metric = type(metric).__name__, metric
        self._size: int | None = None

    def attach(self, dataset: Any) -> None:
        """Tell it of the data that it will see."""
        self.metric.dataset_meta = getattr(dataset, "metainfo", None)
        self._size = len(dataset)

    def reset(self) -> None:
        self.metric.results.clear()

    def update(self, outputs: Mapping[str, Any]) -> None:
        samples = outputs.get("predictions")
        if isinstance(samples, Stacked):
            samples = [samples.row(index) for index in range(len(samples))]
        if not isinstance(samples, (list, tuple)):
            raise ConfigError(
                f"metric {self.name!r} is of MMEngine and takes the data samples that "
                "a model of MMEngine predicts; this one gave "
                f"{type(samples).__name__}"
            )
        dicts = [s.to_dict() if hasattr(s, "to_dict") else s for s in samples]
        self.metric.process(data_batch=outputs.get("batch"), data_samples=dicts)

    def compute(self) -> dict[str, Any]:
        """The results over all ranks, each sample once."""
        shares = gather_objects(list(self.metric.results))
        rows: Iterable[Any] = zip_longest(*shares, fillvalue=_NONE)
        merged = [part for row in rows for part in row if part is not _NONE]
        to_cpu = import_module("mmengine.evaluator.metric")._to_cpu
        found = self.metric.compute_metrics(to_cpu(merged[: self._size]))
        prefix = f"{self.metric.prefix}/" if self.metric.prefix else ""
        return {f"{prefix}{key}": _number(value) for key, value in found.items()}


_NONE = object()


def _number(value: Any) -> Any:
    """A 0-d tensor or numpy number as a float; lists (one for each class) as text."""
    if getattr(value, "ndim", None) == 0 or isinstance(value, (int, float)):
        return float(value)
    return str(value.tolist() if hasattr(value, "tolist") else value)


def _standing_for(base: type, kind: Any) -> type:
    """A class called as `kind` is, whose objects hold one of it in `base`."""

    def init(self: Any, **arguments: Any) -> None:
        super(made, self).__init__(kind(**arguments))

    facts = {"__init__": init, "__signature__": inspect.signature(kind)}
    made: Any = type(kind.__name__, (base,), facts)
    return made  # type: ignore[no-any-return]


def _constructor(kind: Any) -> Buildable:
    """MMEngine's constructor makes a wrapper; devrun takes the optimizer out of it."""

    def constructor(
        optimizer_cfg: Mapping[str, Any], paramwise_cfg: Mapping[str, Any] | None = None
    ) -> Callable[[Any], Any]:
        section = dict(optimizer_cfg)
        wrapper = {"type": "OptimWrapper", "optimizer": section}
        made = kind(wrapper, paramwise_cfg)
        return lambda model: made(model).optimizer

    constructor.__name__ = getattr(kind, "__name__", "constructor")
    return constructor


ADAPTERS: dict[str, Callable[[Any], Buildable]] = {
    "hook": partial(_standing_for, EngineHook),
    "metric": partial(_standing_for, EngineMetric),
    "optimizer constructor": _constructor,
}
OWN: dict[tuple[str, str], Buildable] = {
    ("hook", "ParamSchedulerHook"): ParamSchedulerHook,
    ("hook", "PreciseBNHook"): PreciseBNHook,
    ("hook", "SwitchRecipeHook"): SwitchRecipeHook,
}
"""What devrun has under a name of MMEngine's."""
