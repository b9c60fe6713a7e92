"""One step of each kind of model, and the checks on what the model returned."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from devrun.errors import (
    ConfigError,
    ConfigTypeError,
    DataError,
    DevrunError,
    NoGradientError,
)
from devrun.models.calls import (
    Wrapped,
    call_plain,
    call_whole,
    layout,
    loss_used,
    num_items,
    over_labels,
    shifted,
    target_in,
)
from devrun.tensors import batch_size_of

MODES = ("train", "val", "predict", "generate")


def separate_loss_step(step: Wrapped, batch: Any, mode: str) -> dict[str, Any]:
    """`loss(model(x), y)`.

    Runs in every iteration of most trainings: the usual case is written out, and
    leaves to functions what is not. Whoever runs it adds the loss to `log_vars`: as
    the number it is, where that was read anyway.
    """
    if isinstance(batch, (tuple, list)) and len(batch) == 2:
        inputs, targets = batch
        output = step.model(inputs)
    else:
        inputs = batch
        output, targets = call_plain(step, batch)
    predictions = output if isinstance(output, Tensor) else logits_of(output)
    if isinstance(inputs, Tensor) and inputs.dim():
        num_samples = inputs.size(0)
    else:
        num_samples = batch_size_of(inputs)
    if mode == "predict":
        return {
            "loss": None,
            "log_vars": {},
            "num_samples": num_samples,
            "predictions": predictions,
            "targets": targets,
        }
    if targets is None:
        raise ConfigError(
            f"{step.model_name} has a separate loss, so a batch must be (x, y) or a "
            f"dict with inputs and labels, got {layout(batch)}"
        )
    try:
        loss = step.call_loss(predictions if step.tensor_loss else output, targets)
    except (RuntimeError, TypeError, ValueError) as error:
        loss = loss_used(step)
        fault = step.tensor_loss and _label_fault(loss, predictions, targets)
        if fault:
            raise fault from error
        raise
    if not isinstance(loss, Tensor) or loss.dim():
        loss = _scalar(step, loss, "its loss")
    result = {"loss": loss, "log_vars": {}, "num_samples": num_samples}
    if mode == "train":
        if not loss.requires_grad:
            check_gradient(step, loss)
        if isinstance(targets, Tensor) and targets.dim() > 1:  # else a class a sample
            _count(step, result, targets)
    else:
        result["predictions"] = predictions
        result["targets"] = targets
        _count(step, result, targets)
    return result


def self_loss_step(step: Wrapped, batch: Any, mode: str) -> dict[str, Any]:
    """`model(**batch)` that computes its own loss."""
    output = call_whole(step, batch, mode)
    fields = _fields(output)
    if fields is None or fields.get("loss") is None:
        if mode != "predict":
            raise ConfigError(_no_loss(step, output, fields))
        result = _result(None, {}, batch, logits_of(output))
    else:
        loss = _scalar(step, fields["loss"], "the loss of its output")
        if mode == "train" and step.counts_labels:
            loss = over_labels(step, loss, target_in(batch))
        log_vars = {"loss": loss.detach()}
        for name, value in fields.items():
            if isinstance(value, Tensor) and value.dim() == 0 and name != "loss":
                log_vars[name] = value.detach()
        if mode == "train":
            check_gradient(step, loss)
            result = {
                "loss": loss,
                "log_vars": log_vars,
                "num_samples": batch_size_of(batch),
            }
            targets = target_in(batch)
            if isinstance(targets, Tensor) and targets.dim() > 1:
                _count(step, result, targets)
            return result
        result = _result(loss, log_vars, batch, fields.get("logits"))
        _count(step, result, target_in(batch))
    if step.shifts_labels and "targets" in result:
        result["targets"] = shifted(result["targets"])
    for name, value in (fields or {}).items():
        if name != "logits":  # they are the predictions
            result.setdefault(name, value)
    return result


def own_step(step: Wrapped, batch: Any, mode: str) -> dict[str, Any]:
    """`model.train_step(batch, optimizer)` or `val_step`, as MMCV calls them."""
    model: Any = step.model
    if mode == "predict" and step.takes_return_loss:
        return _result(None, {}, batch, call_whole(step, batch, mode))
    name = "train_step" if mode == "train" else "val_step"
    method = getattr(model, name, None)
    if method is None:
        raise ConfigError(f"{step.model_name} has train_step but no {name}")
    output = method(batch, step.optimizer, **step.step_kwargs)
    return _mmcv_result(step, output, batch, name)


def processor_step(step: Wrapped, batch: Any, mode: str) -> dict[str, Any]:
    """`batch_processor(model, batch, train_mode)`."""
    if mode == "predict" and step.takes_return_loss:
        return _result(None, {}, batch, call_whole(step, batch, mode))
    process: Any = step.batch_processor
    output = process(step.model, batch, train_mode=mode == "train")
    return _mmcv_result(step, output, batch, "batch_processor")


def check_gradient(step: Wrapped, loss: Tensor | None) -> None:
    """Refuse a training loss that no backward pass can start from.

    Models with a `train_step` are not asked here, as they may do the update
    themselves; whoever does the update for them asks.
    """
    if loss is None:
        raise ConfigError(f"{step.model_name} returned no loss to train on")
    if not loss.requires_grad and torch.is_grad_enabled():
        raise NoGradientError(
            f"the loss of {step.model_name} has no gradient path: no parameter that "
            f"requires a gradient takes part in it (all frozen, or detached on the way)"
        )


def detached(log_vars: Mapping[str, Any]) -> dict[str, Any]:
    """The values without their graphs."""
    return {
        name: value.detach() if isinstance(value, Tensor) else value
        for name, value in log_vars.items()
    }


def _mmcv_result(step: Wrapped, output: Any, batch: Any, source: str) -> dict[str, Any]:
    if not isinstance(output, dict):
        raise ConfigTypeError(
            f"{source} of {step.model_name} must return a dict with loss, log_vars "
            f"and num_samples, got {type(output).__name__}"
        )
    result = dict(output)
    loss = result.get("loss")
    if loss is not None:
        loss = _scalar(step, loss, f"the loss of {source}")
    result["loss"] = loss
    result["log_vars"] = detached(result.get("log_vars") or {})
    if result.get("num_samples") is None:
        result["num_samples"] = batch_size_of(batch)
    return result


def _count(step: Wrapped, result: dict[str, Any], targets: Any) -> None:
    count = num_items(step, targets)
    if count is not None:
        result["num_items"] = count


def _scalar(step: Wrapped, loss: Any, what: str) -> Tensor:
    if not isinstance(loss, Tensor):
        raise ConfigTypeError(
            f"{step.model_name}: {what} must be a 0-d tensor, got {type(loss).__name__}"
        )
    if loss.dim() == 0:
        return loss
    if loss.numel() == 1:
        return loss.reshape(())
    raise ConfigError(
        f"{step.model_name}: {what} must be a scalar, got the shape "
        f"{tuple(loss.shape)}; take its mean (a torch.nn loss: reduction='mean')"
    )


def _result(
    loss: Tensor | None, log_vars: dict[str, Any], batch: Any, predictions: Any
) -> dict[str, Any]:
    result = {
        "loss": loss,
        "log_vars": log_vars,
        "num_samples": batch_size_of(batch),
    }
    if predictions is not None:
        result["predictions"] = predictions
    targets = target_in(batch)
    if targets is not None:
        result["targets"] = targets
    return result


def _fields(output: Any) -> Mapping[str, Any] | None:
    """The named parts of an output; None when it has none."""
    if isinstance(output, Mapping):
        return output
    named = getattr(output, "_asdict", None)  # a named tuple's
    if named is not None:
        return dict(named())
    if dataclasses.is_dataclass(output) or hasattr(output, "loss"):
        attributes: Mapping[str, Any] = vars(output)
        return attributes
    return None


def logits_of(output: Any) -> Any:
    """The `logits` of an output that has some, else the output."""
    fields = None if isinstance(output, Tensor) else _fields(output)
    logits = None if fields is None else fields.get("logits")
    return output if logits is None else logits


def _no_loss(step: Wrapped, output: Any, fields: Mapping[str, Any] | None) -> str:
    got = type(output).__name__
    if fields is not None:
        got += f" with {', '.join(map(str, fields)) or 'nothing'}"
    return (
        f"{step.model_name} returned no loss (got {got}): add `loss` to the config, "
        f"or give the batch labels where the model makes its own loss, or write "
        f"train_step"
    )


def _label_fault(loss: Any, predictions: Any, targets: Any) -> DevrunError | None:
    """Why `loss(predictions, targets)` failed, if labels or class weights are why.

    Told from what they are, never from the words of the failure.
    """
    name = type(loss).__name__
    if not isinstance(targets, Tensor):
        kind = f"a {type(targets).__name__}"
        if isinstance(targets, (list, tuple)) and targets:
            kind += f" of {type(targets[0]).__name__}, such as {str(targets[0])[:40]!r}"
        return DataError(
            f"the labels of a batch are {kind}: {name} takes numbers; let the data "
            "set give the number of each class"
        )
    if not isinstance(predictions, Tensor):
        return None
    shape, expected = tuple(targets.shape), tuple(predictions.shape)
    alike = shape == expected and targets.dtype == predictions.dtype
    wanted = "labels of that type and shape"
    if isinstance(loss, (nn.CrossEntropyLoss, nn.NLLLoss)):
        weight = loss.weight
        if weight is not None and len(expected) > 1 and len(weight) != expected[1]:
            return ConfigError(
                f"weight of {name} has {len(weight)} numbers, and the model "
                f"{expected[1]} classes: give one for each",
                key="loss",
            )
        classes = (expected[0], *expected[2:]) if len(expected) > 1 else ()
        alike = alike and not isinstance(loss, nn.NLLLoss)  # which takes no parts
        alike = alike or (shape == classes and not targets.is_floating_point())
        wanted = f"class numbers, integers of shape {list(classes)}"
    if alike:
        return None
    return DataError(
        f"the labels of a batch are {targets.dtype} of shape {list(shape)}, and the "
        f"predictions {predictions.dtype} of shape {list(expected)}: {name} takes "
        f"{wanted}"
    )
