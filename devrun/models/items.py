"""How many items the loss of a batch is the mean over.

A loss of class numbers is mostly a mean over those targets that are not ignored. Means
of batches with padding must be weighed by how many that are, not by their samples:
Hugging Face calls the count `num_items_in_batch`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from devrun.models.calls import Wrapped, target_in

IGNORED = -100
"""Target of positions that do not count, as in torch's cross entropy."""


def num_items(step: Wrapped, targets: Any) -> Tensor | None:
    """Targets that count in the loss, a 0-d tensor beside them; no host sync.

    With class weights, the sum of theirs, by which torch's losses divide. None where
    the loss is not known to be a mean over targets: they are no class numbers, the
    loss has another `reduction`, or the step says that samples count.
    """
    if not (step.counts_items and is_classes(targets)):
        return None
    loss: Any = step.loss
    if getattr(loss, "reduction", "mean") != "mean":
        return None
    if step.shifts_labels:
        targets = targets[..., 1:]
    valid: Tensor = targets != getattr(loss, "ignore_index", IGNORED)
    weight = getattr(loss, "weight", None)
    if isinstance(loss, (nn.CrossEntropyLoss, nn.NLLLoss)) and weight is not None:
        # a target without a weight is left for the loss to refuse
        valid = weight[(targets * valid).clamp(0, len(weight) - 1)] * valid
    count: Tensor = valid.sum()
    return count


def items_in(step: Wrapped, batch: Any) -> Tensor | None:
    """`num_items` of a batch that has not been through the model yet."""
    if isinstance(batch, Mapping):
        return num_items(step, target_in(batch))
    if step.loss is not None and isinstance(batch, (tuple, list)) and len(batch) > 1:
        return num_items(step, batch[-1])
    return None


def is_classes(targets: Any) -> bool:
    """Whether they are class numbers: signed integers, one or more a sample."""
    if not isinstance(targets, Tensor) or targets.dim() == 0:
        return False
    kind = targets.dtype
    return kind.is_signed and not (kind.is_floating_point or kind.is_complex)


def shifts_labels(model: nn.Module) -> bool:
    """Whether logits at t are compared with labels at t + 1.

    Hugging Face's causal models say so by `loss_type`, older ones by their name.
    """
    causal = getattr(model, "loss_type", None) == "ForCausalLM"
    return causal or type(model).__name__.endswith("LMHeadModel")


def shifted(labels: Any) -> Any:
    """Labels `[N, T]` of a causal model, each where the logits for it are."""
    if not is_classes(labels) or labels.dim() < 2:
        return labels
    return F.pad(labels[..., 1:], (0, 1), value=IGNORED)
