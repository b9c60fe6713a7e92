"""The two kinds of metric an evaluation can compute.

A `MeanMetric` is one number a batch, averaged over all samples, or all that it says it
counted, of all processes (and turned into its value at the end): the evaluation keeps
the sums. A `StatefulMetric`
is an object in torchmetrics' words, which keeps its own state.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from devrun.dist import gather_objects, get_dist_info
from devrun.errors import ConfigError, ConfigTypeError
from devrun.registry import METRICS


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
    """A function of predictions and targets that returns what `batch` does.

    One that returns the mean alone may have the function with the pair as `counted`.
    """

    def __init__(self, name: str, function: Callable[..., Any]) -> None:
        super().__init__(name)
        self.function = getattr(function, "counted", function)

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
    for key, value in zip(("predictions", "targets"), pair, strict=True):
        if value is None:
            raise ConfigError(
                f"metric {name!r} needs {key!r}, which the model's evaluation step did "
                f"not return (it has: {', '.join(map(str, outputs))})"
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
