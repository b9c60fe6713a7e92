"""`build_metrics`: what `metric=` in an evaluation config stands for."""

from __future__ import annotations

import copy
import functools
import inspect
import re
from collections.abc import Mapping
from typing import Any, TypeAlias

from devrun.construct import where
from devrun.errors import ConfigError, ConfigTypeError, UnknownNameError
from devrun.metrics.functional import topk_accuracy
from devrun.metrics.kinds import FunctionMetric, MeanMetric, StatefulMetric
from devrun.registry import METRICS

BuiltMetric: TypeAlias = MeanMetric | StatefulMetric

_TOPK = re.compile(r"(?:accuracy_)?top-?([1-9]\d*)", re.ASCII)


def build_metrics(spec: Any) -> list[BuiltMetric]:
    """Metrics from a name, a dict with `type`, or a list of these; None gives none.

    Raises:
        UnknownNameError: no such metric.
        ConfigError: an argument is wrong, or two have one name.
    """
    several = isinstance(spec, (list, tuple))
    entries: Any = spec if several else [] if spec is None else [spec]
    metrics: dict[str, BuiltMetric] = {}
    for at, entry in enumerate(entries):
        try:
            metric = build_metric(entry)
            if metric.name in metrics:
                raise ConfigError(
                    f"two metrics are named {metric.name!r}; give one another 'name'"
                )
        except ConfigError as error:
            error.key = "metric"
            if several:
                error.locate(where(spec, at))
            raise
        metrics[metric.name] = metric
    return list(metrics.values())


def build_metric(spec: Any) -> BuiltMetric:
    """One metric: `"accuracy"`, `"top5"`, or `{"type": "torchmetrics.F1Score", ...}`.

    `type` is a name in METRICS (a function `f(predictions, targets)`, a `MeanMetric`
    or a class in torchmetrics' words) or a dotted path to such a class. `name`
    changes the name of the result.
    """
    if callable(spec) and not inspect.isclass(spec):
        return FunctionMetric(getattr(spec, "__name__", type(spec).__name__), spec)
    if isinstance(spec, str):
        spec = {"type": spec}
    if not isinstance(spec, Mapping):
        raise ConfigTypeError(
            f"a metric is a name or a dict with 'type', got {type(spec).__name__}"
        )
    cfg: Any = copy.copy(spec)  # of its own class, which may know its file and line
    cfg.pop("name", None)
    kind = cfg.get("type")
    if not isinstance(kind, str):
        raise UnknownNameError(f"a metric needs a 'type' that is a name, got {kind!r}")
    name = str(spec.get("name", kind.rpartition(".")[2]))
    args = {key: value for key, value in cfg.items() if key != "type"}
    if match := _TOPK.fullmatch(kind):
        return _function(name, topk_accuracy, {"k": int(match[1]), **args})
    target = METRICS.resolve(kind)
    if inspect.isfunction(target):
        return _function(name, target, args)
    metric = METRICS.build(cfg)
    if isinstance(metric, (MeanMetric, StatefulMetric)):
        metric.name = name
        return metric
    if callable(getattr(metric, "compute", None)):
        return StatefulMetric(name, metric)
    if callable(metric):
        return FunctionMetric(name, metric)
    raise ConfigTypeError(
        f"metric {kind!r} is neither a function nor an object with update(), "
        "compute() and reset()"
    )


def _function(name: str, function: Any, args: Mapping[str, Any]) -> FunctionMetric:
    try:
        inspect.signature(function).bind(None, None, **args)
    except TypeError as error:
        accepted = list(inspect.signature(function).parameters)[2:]
        raise ConfigTypeError(
            f"metric {name!r}: {error}; it accepts: {', '.join(accepted) or 'none'}"
        ) from None
    function = getattr(function, "counted", function)
    return FunctionMetric(name, functools.partial(function, **args))
