"""Metrics: functions of predictions and targets, or torchmetrics by dotted path.

A `MeanMetric` is one number a batch, averaged over all samples, or all that it says it
counted, of all processes (and turned into its value at the end): the evaluation keeps
the sums. A `StatefulMetric` is an object in torchmetrics' words, which keeps its own
state. A function `f(predictions, targets)` returns a mean, or a pair: the mean, and how
many positions it is the mean over, by which the means of several batches are weighed.
"""

from __future__ import annotations

import copy
import functools
import inspect
import math
import re
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Union

from devrun.construct import where
from devrun.dist import gather_objects, get_dist_info
from devrun.errors import ConfigError, ConfigTypeError, UnknownNameError
from devrun.models.calls import IGNORED
from devrun.registry import METRICS as METRICS

if TYPE_CHECKING:
    from torch import Tensor


_TOPK = re.compile(r"(?:accuracy_)?top-?([1-9]\d*)", re.ASCII)


class MeanMetric:
    """A value that follows from one mean over everything; subclass `batch`."""

    def __init__(self, name: str) -> None:
        self.name = name

    def batch(self, outputs: Mapping[str, Any]) -> Any:
        """Mean over the samples of one evaluation step; a 0-d tensor or a number.

        A pair of these is a mean, and how many it is the mean over where that is
        something else than the samples, such as the tokens that are not padding.
        """
        raise NotImplementedError

    def value(self, mean: float) -> float:
        """The metric, from the mean over everything."""
        return mean


class FunctionMetric(MeanMetric):
    """A function of predictions and targets that returns what `batch` does."""

    def __init__(self, name: str, function: Callable[..., Any]) -> None:
        super().__init__(name)
        self.function = function

    def batch(self, outputs: Mapping[str, Any]) -> Any:
        return self.function(*predictions_and_targets(self.name, outputs))


@METRICS.register_module(name=["perplexity", "Perplexity"])
class Perplexity(MeanMetric):
    """exp of the mean loss; the mean is taken over everything first.

    Each loss counts for as many items (tokens) as it is the mean over, where that is
    known, else for its samples.
    """

    def __init__(self, name: str = "perplexity") -> None:
        super().__init__(name)

    def batch(self, outputs: Mapping[str, Any]) -> Any:
        if outputs.get("loss") is None:
            raise ConfigError(
                f"metric {self.name!r} needs a loss in evaluation; the model returned "
                "none (are labels in the batch?)"
            )
        items = outputs.get("num_items")
        return outputs["loss"] if items is None else (outputs["loss"], items)

    def value(self, mean: float) -> float:
        return math.exp(mean) if mean < 709 else math.inf if mean == mean else mean


class StatefulMetric:
    """An object with `update(predictions, targets)`, `compute()` and `reset()`."""

    def __init__(self, name: str, metric: Any) -> None:
        self.name = name
        self.metric = metric
        self._placed = False
        if get_dist_info()[1] > 1 and not hasattr(metric, "sync"):
            raise ConfigError(
                f"metric {name!r} ({type(metric).__name__}) has no sync(): it would "
                "count the samples of one process only; derive it from "
                "torchmetrics.Metric, or give a function"
            )
        for part in metric.modules() if hasattr(metric, "modules") else ():
            if getattr(part, "dist_sync_fn", self) is None:
                part.dist_sync_fn = _gathered
                # a process without samples gives an empty state, on any torch
                part._TORCH_GREATER_EQUAL_2_1 = True

    def attach(self, dataset: Any) -> None:
        """Be told of the data set, before its first evaluation."""

    def reset(self) -> None:
        self.metric.reset()

    def update(self, outputs: Mapping[str, Any]) -> None:
        """Take in one evaluation step."""
        predictions, targets = predictions_and_targets(self.name, outputs)
        if not self._placed and hasattr(self.metric, "to"):
            self.metric = self.metric.to(predictions.device)
            self._placed = True
        self.metric.update(predictions, targets)

    def compute(self) -> dict[str, float]:
        """The values, by name: the metric's own, or one for each entry of a dict."""
        found = self.metric.compute()
        if isinstance(found, Mapping):
            return {str(key): _scalar(str(key), value) for key, value in found.items()}
        return {self.name: _scalar(self.name, found)}


class SetMetric:
    """Looks at a whole set by itself, beside the evaluation's batches."""

    names: tuple[str, ...]
    """Of its results."""

    def of_set(self, run: Any, dataloader: Any) -> dict[str, float]:
        """The results, on every rank; called while the run evaluates."""
        raise NotImplementedError


def set_metrics(metrics: Iterable[Any]) -> list[SetMetric]:
    """Those of `metrics` that are such."""
    return [metric for metric in metrics if isinstance(metric, SetMetric)]


BuiltMetric = Union["MeanMetric", "StatefulMetric"]


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
    return FunctionMetric(name, functools.partial(function, **args))


@METRICS.register_module()
def accuracy(
    predictions: Tensor, targets: Tensor, ignore_index: int = IGNORED
) -> tuple[Tensor, Tensor]:
    """Fraction, 0 to 1, of positions whose class was predicted, and their number.

    Args:
        predictions: class scores `[N, C]`, `[N, C, ...]` or `[N, ..., C]`, or class
            numbers shaped like `targets`.
        targets: class numbers `[N]` or `[N, ...]`; or the probability of each class,
            `[N, C]` or `[N, C, ...]`, of which the largest counts.
        ignore_index: positions with this target are left out.
    """
    targets = _hard(predictions, targets)
    if predictions.shape == targets.shape and not predictions.is_floating_point():
        hits = predictions == targets
    else:
        hits = _scores_last(predictions, targets).argmax(dim=-1) == targets
    return _mean_where(hits, targets != ignore_index)


@METRICS.register_module()
def topk_accuracy(
    predictions: Tensor, targets: Tensor, k: int = 5, ignore_index: int = IGNORED
) -> tuple[Tensor, Tensor]:
    """The same for a class among the `k` best scores.

    The names `top1`, `top5` and `accuracy_top-5` stand for it.
    """
    targets = _hard(predictions, targets)
    scores = _scores_last(predictions, targets)
    if not 1 <= k <= scores.shape[-1]:
        raise ConfigError(f"top{k} of {scores.shape[-1]} classes; k must be 1 to that")
    best = scores.topk(k, dim=-1).indices
    hits = (best == targets.unsqueeze(-1)).any(dim=-1)
    return _mean_where(hits, targets != ignore_index)


def _hard(predictions: Tensor, targets: Tensor) -> Tensor:
    """Class numbers of soft targets, such as mixup makes; others as they are."""
    soft = targets.is_floating_point() and targets.dim() > 1
    soft = soft and predictions.is_floating_point()
    return targets.argmax(1) if soft and predictions.shape == targets.shape else targets


def _scores_last(predictions: Tensor, targets: Tensor) -> Tensor:
    shape = predictions.shape
    if targets.is_floating_point() or predictions.dim() != targets.dim() + 1:
        raise ConfigError(
            f"accuracy takes class scores [N, C] and class numbers [N], got "
            f"predictions {list(shape)} and targets {list(targets.shape)} of "
            f"{targets.dtype}"
        )
    if shape[:-1] == targets.shape:
        return predictions
    if (shape[0], *shape[2:]) == tuple(targets.shape):
        return predictions.movedim(1, -1)
    raise ConfigError(
        f"predictions {list(shape)} do not fit targets {list(targets.shape)}: only the "
        "class dimension may differ"
    )


def _mean_where(hits: Tensor, counted: Tensor) -> tuple[Tensor, Tensor]:
    """Mean over the counted positions (0 where none counts), and their number.

    Without a host sync.
    """
    count = counted.sum()
    return (hits & counted).sum().float() / count.clamp(min=1), count


def _gathered(state: Any, group: Any = None) -> list[Any]:
    """`state` of every process, for torchmetrics, whose own function cannot take that
    of one without samples: it is empty, and of another type and shape."""
    kinds = gather_objects((state.dtype, state.dim()))
    if len(set(kinds)) == 1:
        from torchmetrics.utilities.distributed import gather_all_tensors

        return list(gather_all_tensors(state, group))
    states = gather_objects(state.cpu())
    return [other.to(state.device) for other in states if other.numel()]


def predictions_and_targets(name: str, outputs: Mapping[str, Any]) -> tuple[Any, Any]:
    """Both from an evaluation step's outputs.

    Raises:
        ConfigError: the model did not return one of them.
    """
    pair = outputs.get("predictions"), outputs.get("targets")
    for key, value in zip(("predictions", "targets"), pair):
        if value is None:
            raise ConfigError(
                f"metric {name!r} needs {key!r}, which the model's evaluation step did "
                f"not return (it has: {', '.join(map(str, outputs))})",
                key="evaluation",
            )
    return pair


def _scalar(name: str, value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError, RuntimeError):
        raise ConfigTypeError(
            f"metric {name!r} gave {type(value).__name__} of shape "
            f"{list(getattr(value, 'shape', []))}; one number is needed (such as "
            "average='macro')"
        ) from None
