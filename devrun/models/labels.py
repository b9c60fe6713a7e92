"""Labels that a loss of torch cannot compare with what the model returned."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from devrun.errors import ConfigError, DataError, DevrunError

_CLASSES = (nn.CrossEntropyLoss, nn.NLLLoss)


def label_fault(loss: Any, predictions: Any, targets: Any) -> DevrunError | None:
    """Why `loss(predictions, targets)` failed, if labels or class weights are why.

    Told from what they are, never from the words of the failure.
    """
    name = type(loss).__name__
    if not isinstance(targets, Tensor):
        return DataError(
            f"the labels of a batch are {_shown(targets)}: {name} takes numbers; let "
            "the data set give the number of each class"
        )
    if not isinstance(predictions, Tensor):
        return None
    shape, expected = tuple(targets.shape), tuple(predictions.shape)
    given = f"the labels of a batch are {targets.dtype} of shape {list(shape)}"
    beside = f"and the predictions {predictions.dtype} of shape {list(expected)}"
    if not isinstance(loss, _CLASSES):
        if shape == expected and targets.dtype == predictions.dtype:
            return None
        return DataError(
            f"{given}, {beside}: {name} takes both alike; let the data set give labels "
            "of that type and shape"
        )
    weight = loss.weight
    if weight is not None and len(expected) > 1 and len(weight) != expected[1]:
        return ConfigError(
            f"weight of {name} has {len(weight)} numbers, and the model {expected[1]} "
            "classes: give one for each",
            key="loss",
        )
    classes = (expected[0], *expected[2:]) if len(expected) > 1 else ()
    soft = isinstance(loss, nn.CrossEntropyLoss) and targets.is_floating_point()
    probabilities = soft and shape == expected
    if probabilities or (shape == classes and not targets.is_floating_point()):
        return None
    return DataError(
        f"{given}, {beside}: {name} takes class numbers, integers of shape "
        f"{list(classes)}; let the data set give one for each sample"
    )


def _shown(targets: Any) -> str:
    kind = type(targets).__name__
    if isinstance(targets, (list, tuple)) and targets:
        first = " ".join(repr(targets[0])[:40].split())
        return f"a {kind} of {type(targets[0]).__name__}, such as {first}"
    return f"a {kind}"
