"""Metrics that are a mean: `f(predictions, targets)` -> 0-d tensor.

`f.counted` returns the same mean and how many positions it is the mean over, by which
the means of several batches are weighed.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from devrun.errors import ConfigError
from devrun.models.items import IGNORED
from devrun.registry import METRICS

if TYPE_CHECKING:
    from torch import Tensor


def _mean(counted: Callable[..., tuple[Tensor, Tensor]]) -> Any:
    """A metric from the function that returns the mean and the count."""

    @functools.wraps(counted)
    def mean(*args: Any, **kwargs: Any) -> Any:
        return counted(*args, **kwargs)[0]

    vars(mean)["counted"] = counted
    return mean


@METRICS.register_module()
@_mean
def accuracy(
    predictions: Tensor, targets: Tensor, ignore_index: int = IGNORED
) -> tuple[Tensor, Tensor]:
    """Fraction, 0 to 1, of positions whose class was predicted.

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
@_mean
def topk_accuracy(
    predictions: Tensor, targets: Tensor, k: int = 5, ignore_index: int = IGNORED
) -> tuple[Tensor, Tensor]:
    """Fraction, 0 to 1, of positions whose class is among the `k` best scores.

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
