"""The step of a model of MMEngine's: its `train_step` and `val_step`."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sized
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from devrun.data.batch import batch_size_of
from devrun.errors import UnsupportedFeatureError
from devrun.models.calls import Wrapped
from devrun.models.steps import check_gradient

__all__ = ["engine_step", "is_of_engine"]


def is_of_engine(model: nn.Module) -> bool:
    """Whether `model` is a `BaseModel` of MMEngine, which is imported by then."""
    module = sys.modules.get("mmengine.model")
    base = getattr(module, "BaseModel", None)
    return base is not None and isinstance(model, base)


class _Update:
    """Stands for MMEngine's `OptimWrapper`: keeps the loss that an update is for."""

    def __init__(self, name: str) -> None:
        self._name = name
        self.loss: Any = None

    @contextmanager
    def optim_context(self, model: nn.Module) -> Iterator[None]:
        yield

    def update_params(self, loss: Tensor, *args: Any, **kwargs: Any) -> None:
        if self.loss is not None:
            self._refuse("updates several times in a step")
        self.loss = loss

    def scale_loss(self, loss: Tensor) -> Tensor:
        return loss

    def __getattr__(self, name: str) -> Any:
        return self._refuse(f"uses {name} of its optim_wrapper")

    def _refuse(self, what: str) -> Any:
        raise UnsupportedFeatureError(
            f"train_step of {self._name} {what}: devrun does the update itself, from "
            "the loss that update_params is given"
        )


def engine_step(step: Wrapped, batch: Any, mode: str) -> dict[str, Any]:
    """`model.train_step(data, optim_wrapper)`, else `model.val_step(data)`.

    The model's preprocessor is part of both; what an evaluation predicts are data
    samples, which its metrics take.
    """
    model: Any = step.model
    _place(model)
    count = _count(batch)
    if mode != "train":
        return {
            "loss": None,
            "log_vars": {},
            "num_samples": count,
            "predictions": model.val_step(batch),
        }
    update = _Update(step.model_name)
    log_vars = model.train_step(batch, update)
    check_gradient(step, update.loss)
    return {
        "loss": update.loss,
        "log_vars": {
            name: value.detach() if isinstance(value, Tensor) else value
            for name, value in log_vars.items()
        },
        "num_samples": count,
    }


def _place(model: Any) -> None:
    """Its preprocessor moves data itself, to where it was told that the model is."""
    parameter = next(model.parameters(), None)
    device = torch.device("cpu") if parameter is None else parameter.device
    if getattr(model.data_preprocessor, "_device", device) != device:
        model._set_device(device)


def _count(batch: Any) -> int:
    inputs = batch.get("inputs") if isinstance(batch, Mapping) else None
    if isinstance(inputs, Mapping):
        inputs = next(iter(inputs.values()), None)
    if isinstance(inputs, (list, tuple)) and isinstance(inputs[0], (list, tuple)):
        inputs = inputs[0]  # several views of each sample
    if isinstance(inputs, (list, tuple)) and isinstance(inputs, Sized):
        return len(inputs)
    return batch_size_of(batch)
