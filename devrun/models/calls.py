"""How a batch is passed to a model's `forward`, and how many targets its loss counts.

A loss of class numbers is mostly a mean over those targets that are not ignored. Means
of batches with padding must be weighed by how many that are, not by their samples: a
model that makes its own loss may take the count as `num_items_in_batch`.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from devrun.errors import ConfigError
from devrun.text import joined

INPUT_KEYS = (
    "inputs",
    "input",
    "x",
    "image",
    "images",
    "img",
    "imgs",
    "pixel_values",
    "input_ids",
    "features",
)
TARGET_KEYS = ("labels", "label", "targets", "target", "y", "gt_label", "gt_labels")

IGNORED = -100
"""Target of positions that do not count, as in torch's cross entropy."""


class Wrapped(Protocol):
    """A model as a step finds it: with what was learnt of it when it was wrapped.

    `devrun.models.step_module.StepModule` defines each of these.
    """

    model: nn.Module
    model_name: str
    signature: inspect.Signature
    takes_return_loss: bool
    call_forms: dict[Any, Any]
    loss: Any
    call_loss: Any
    tensor_loss: bool
    counts_items: bool
    counts_labels: bool
    shifts_labels: bool
    batch_processor: Any
    optimizer: Any
    step_kwargs: dict[str, Any]


def target_in(batch: Any) -> Any:
    """The labels of a dict batch, by the usual names; None if it has none."""
    if isinstance(batch, Mapping):
        for key in TARGET_KEYS:
            if key in batch:
                return batch[key]
    return None


def call_plain(step: Wrapped, batch: Any) -> tuple[Any, Any]:
    """The output of a model that takes no labels, and the labels or None."""
    if isinstance(batch, (tuple, list)):
        if not batch:
            raise ConfigError(f"an empty batch for {step.model_name}")
        *inputs, target = batch if len(batch) > 1 else (*batch, None)
        return step.model(*inputs), target
    if not isinstance(batch, Mapping):
        return step.model(batch), None
    form = ("plain", *batch)
    if form not in step.call_forms:
        step.call_forms[form] = _plain_form(step, batch)
    inputs, target_key = step.call_forms[form]
    target = None if target_key is None else batch[target_key]
    if isinstance(inputs, str):
        return step.model(batch[inputs]), target
    return step.model(**{key: batch[key] for key in inputs}), target


def _plain_form(
    step: Wrapped, batch: Mapping[str, Any]
) -> tuple[str | list[str], str | None]:
    """Which key, or which keyword arguments, are the inputs, and which the labels."""
    target_key = next((key for key in TARGET_KEYS if key in batch), None)
    rest = [key for key in batch if key != target_key]
    if len(rest) == 1:
        return rest[0], target_key
    if rest and _binds(step, **dict.fromkeys(rest)):
        return rest, target_key
    named = [key for key in INPUT_KEYS if key in rest]
    if len(named) == 1:
        return named[0], target_key
    raise ConfigError(
        f"cannot tell what {step.model_name}.forward{step.signature} takes from a "
        f"batch with the keys {', '.join(map(str, batch))}; name the input "
        f"{INPUT_KEYS[0]!r}, or as forward does"
    )


def call_whole(step: Wrapped, batch: Any, mode: str) -> Any:
    """The output of a model that takes a whole batch, labels included."""
    extra = {"return_loss": mode != "predict"} if step.takes_return_loss else {}
    if isinstance(batch, Mapping):
        form: Any = ("whole", *batch)
    elif isinstance(batch, (tuple, list)):
        form = len(batch)
    else:
        return step.model(batch, **extra)
    if form not in step.call_forms:
        if not _spreads(step, batch, extra):
            output = _first_whole_call(step, batch, extra)
            step.call_forms[form] = False
            return output
        step.call_forms[form] = True
    if not step.call_forms[form]:
        return step.model(batch, **extra)
    if isinstance(batch, Mapping):
        return step.model(**{**batch, **extra})
    return step.model(*batch, **extra)


def _spreads(step: Wrapped, batch: Any, extra: dict[str, Any]) -> bool:
    """Whether the parts of the batch are the arguments, or the batch is the one."""
    if isinstance(batch, Mapping):
        fits = all(isinstance(key, str) for key in batch)
        fits = fits and _binds(step, **{**batch, **extra})
    else:
        fits = _binds(step, *batch, **extra)
    if fits:
        return True
    if _binds(step, batch, **extra):
        return False
    raise ConfigError(
        f"{step.model_name}.forward{step.signature} does not take {layout(batch)}"
    )


def _first_whole_call(step: Wrapped, batch: Any, extra: dict[str, Any]) -> Any:
    """Tells a model that takes a batch as one from one that takes something else."""
    try:
        return step.model(batch, **extra)
    except (TypeError, AttributeError) as error:
        cause = joined(error)
        raise ConfigError(
            f"{step.model_name}.forward{step.signature} takes {layout(batch)} neither "
            f"as arguments nor as one batch ({cause}); a model that makes no loss of "
            f"its own needs `loss` in the config"
        ) from error


def layout(batch: Any) -> str:
    """The layout of a batch, as a message shows it."""
    if isinstance(batch, Mapping):
        return f"a dict with {', '.join(map(str, batch)) or 'nothing'}"
    if isinstance(batch, (tuple, list)):
        return f"a {type(batch).__name__} of {len(batch)}"
    return f"one {type(batch).__name__}"


def _binds(step: Wrapped, *args: Any, **kwargs: Any) -> bool:
    try:
        step.signature.bind(*args, **kwargs)
    except TypeError:
        return False
    return True


def num_items(step: Wrapped, targets: Any, first: bool = False) -> Tensor | None:
    """Targets that count in the loss, a 0-d tensor beside them; no host sync.

    With class weights, the sum of theirs, by which torch's losses divide. The first of
    each row, which a causal model predicts by none, counts by `first` only. None where
    the loss is not known to be a mean over targets: they are no class numbers, the
    loss has another `reduction`, or the step says that samples count.
    """
    if not (step.counts_items and is_classes(targets)):
        return None
    loss = loss_used(step)
    if getattr(loss, "reduction", "mean") != "mean":
        return None
    if step.shifts_labels and not first:
        targets = targets[..., 1:]
    valid: Tensor = targets != getattr(loss, "ignore_index", IGNORED)
    weight = getattr(loss, "weight", None)
    if isinstance(loss, (nn.CrossEntropyLoss, nn.NLLLoss)) and weight is not None:
        # a target without a weight is left for the loss to refuse
        valid = weight[(targets * valid).clamp(0, len(weight) - 1)] * valid
    count: Tensor = valid.sum()
    return count


def loss_used(step: Wrapped) -> Any:
    """The separate loss of a step in its mode of now: see `LossByMode`."""
    return getattr(step.loss, "in_force", step.loss)


def items_in(step: Wrapped, batch: Any) -> Tensor | None:
    """`num_items` of a batch that has not been through the model yet."""
    if isinstance(batch, Mapping):
        return num_items(step, target_in(batch), step.counts_labels)
    if step.loss is not None and isinstance(batch, (tuple, list)) and len(batch) > 1:
        return num_items(step, batch[-1])
    return None


def over_labels(step: Wrapped, loss: Tensor, labels: Any) -> Tensor:
    """A causal model's mean over its targets as their sum / the number of labels."""
    targets, every = num_items(step, labels), num_items(step, labels, first=True)
    if targets is None or every is None:
        return loss
    return torch.where(targets > 0, loss, 0.0) * (targets / every.clamp(min=1))


def is_classes(targets: Any) -> bool:
    """Whether they are class numbers: signed integers, one or more a sample."""
    if not isinstance(targets, Tensor) or targets.dim() == 0:
        return False
    kind = targets.dtype
    return kind.is_signed and not (kind.is_floating_point or kind.is_complex)


def shifts_labels(model: nn.Module) -> bool:
    """Whether logits at t are compared with labels at t + 1.

    A causal model that makes its own loss says so by `loss_type`, or by its name.
    """
    causal = getattr(model, "loss_type", None) == "ForCausalLM"
    return causal or type(model).__name__.endswith("LMHeadModel")


def shifted(labels: Any) -> Any:
    """Labels `[N, T]` of a causal model, each where the logits for it are."""
    if not is_classes(labels) or labels.dim() < 2:
        return labels
    return F.pad(labels[..., 1:], (0, 1), value=IGNORED)
