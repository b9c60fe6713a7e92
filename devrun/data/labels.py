"""Labels that the model cannot have, found before the first step."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Subset

from devrun.errors import ConfigError


def check_labels(dataset: Any, num_classes: int) -> None:
    """Refuse a data set with a label outside 0 to `num_classes` - 1.

    Looks at `targets` (integers, as a tensor, an array or a list, also through
    `Subset`); a data set without them, or with targets of another kind, passes.

    Raises:
        ConfigError: names the first such sample and its label.
    """
    targets = _targets(dataset)
    if targets is None or targets.numel() == 0 or targets.is_floating_point():
        return
    wrong = ((targets < 0) | (targets >= num_classes)).flatten()
    if not wrong.any():
        return
    first = int(wrong.nonzero()[0, 0])
    count = int(wrong.sum())
    raise ConfigError(
        f"sample {first} of {type(dataset).__name__} has the label "
        f"{int(targets.flatten()[first])}, but the model has {num_classes} classes "
        f"(0 to {num_classes - 1}); {count} of {len(targets)} labels are out of range"
    )


def _targets(dataset: Any) -> Tensor | None:
    """One label per sample as a tensor, or None."""
    if type(dataset) is Subset:
        whole = _targets(dataset.dataset)
        return None if whole is None else whole[torch.as_tensor(dataset.indices)]
    targets = getattr(dataset, "targets", None)
    if targets is None:
        return None
    try:
        found = torch.as_tensor(targets)
    except (TypeError, ValueError, RuntimeError):  # boxes, strings, ragged lists
        return None
    return found if found.dim() == 1 and not found.is_complex() else None
