"""What a data set tells of itself without reading a sample."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Subset

from devrun.errors import ConfigError


def column(dataset: Any, name: str) -> Tensor | None:
    """One number for each sample, such as `targets`, shape (samples,), also through
    `Subset`; None where the data set has none, or something else, of that name."""
    if type(dataset) is Subset:
        whole = column(dataset.dataset, name)
        return None if whole is None else whole[torch.as_tensor(dataset.indices)]
    values = getattr(dataset, name, None)
    if values is None:
        return None
    try:
        found = torch.as_tensor(values)
    except (TypeError, ValueError, RuntimeError):  # boxes, strings, ragged lists
        return None
    return found if found.dim() == 1 and not found.is_complex() else None


def check_labels(dataset: Any, num_classes: int) -> None:
    """Refuse a data set with a label outside 0 to `num_classes` - 1.

    Looks at `targets`; a data set without whole numbers there passes.

    Raises:
        ConfigError: names the first such sample and its label.
    """
    targets = column(dataset, "targets")
    if targets is None or targets.is_floating_point():
        return
    wrong = ((targets < 0) | (targets >= num_classes)).nonzero().flatten().tolist()
    if wrong:
        raise ConfigError(
            f"sample {wrong[0]} of {type(dataset).__name__} has the label "
            f"{int(targets[wrong[0]])}, but the model has {num_classes} classes "
            f"(0 to {num_classes - 1}); {len(wrong)} of {len(targets)} labels are out "
            "of range"
        )


def data_facts(loader: Any) -> dict[str, Any]:
    """Class and sizes of the data of a prepared `loader`.

    Empty where devrun does not divide the data over the processes itself: with a
    sampler of the user's own, or an iterable data set, each may have data of its own.
    """
    size = loader.samples_per_update
    if size is None:
        return {}
    dataset = loader.dataset
    return {
        "class": type(dataset).__name__,
        "samples": len(dataset),
        "samples per update": size,
    }
