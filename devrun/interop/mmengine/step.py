"""The step of a model of MMEngine's: its `train_step` and `val_step`."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence, Sized
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from devrun.errors import ConfigError, UnsupportedFeatureError
from devrun.interop.mmengine.hooks import RuntimeInfoHook
from devrun.models.calls import Wrapped
from devrun.models.steps import check_gradient, detached
from devrun.tensors import batch_size_of


def contract_of(model: nn.Module) -> EngineContract | None:
    """That of a `BaseModel` of MMEngine, which is imported, else None."""
    base = getattr(sys.modules["mmengine.model"], "BaseModel", ())
    return EngineContract(model) if isinstance(model, base) else None


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
    if isinstance(batch, Stacked):
        return _of_stacked(step, batch, mode)
    _place(model)
    count = _count(batch)
    if mode != "train":
        predicted = model.val_step(batch)
        return _result(None, {}, count, predictions=predicted)
    update = _Update(step.model_name)
    log_vars = detached(model.train_step(batch, update))
    check_gradient(step, update.loss)
    return _result(update.loss, log_vars, count)


def _result(loss: Any, log_vars: Any, count: int, **more: Any) -> dict[str, Any]:
    return {"loss": loss, "log_vars": log_vars, "num_samples": count, **more}


@dataclass
class Stacked:
    """Data samples as tensors over all of them, which a compiled graph takes."""

    kind: Any
    """Their class."""
    meta: dict[str, Any]
    columns: dict[str, Any]
    """Field -> tensor of shape (samples, ...), or `Stacked` of such elements."""
    inputs: Any = None
    """What the model takes beside them."""

    @classmethod
    def of(cls, samples: Sequence[Any], inputs: Any = None) -> Stacked:
        """`samples`, whose fields have one shape each; other fields are left out."""
        first = samples[0]
        columns: dict[str, Any] = {}
        for name in first.keys():  # noqa: SIM118 - it is no dict
            values = [sample.get(name) for sample in samples]
            if all(isinstance(value, Tensor) for value in values):
                if len({value.shape for value in values}) == 1:
                    columns[name] = torch.stack(values)
            elif hasattr(values[0], "metainfo_keys"):
                columns[name] = cls.of(values)
        meta = {key: first.get(key) for key in first.metainfo_keys() if key in _META}
        return cls(type(first), meta, columns, inputs)

    def row(self, index: int) -> Any:
        """Sample `index`, of their class."""
        sample = self.kind(metainfo=dict(self.meta))
        for name, column in self.columns.items():
            nested = isinstance(column, Stacked)
            value = column.row(index) if nested else column[index]
            sample.set_field(value, name)
        return sample

    def __len__(self) -> int:
        """How many there are."""
        column = next(iter(self.columns.values()))
        return len(column)


_META = ("num_classes", "img_shape", "ori_shape", "pad_shape", "batch_input_shape")
"""Facts of a sample that models read, and that are those of a whole batch."""


def stacked_batch(step: Wrapped, batch: Any, mode: str) -> Any:
    """`batch` as the model's preprocessor makes it on the host, in tensors.

    For devices that compile a step: its lists of images of any size, and its random
    changes of a batch, are no part of a graph.

    Raises:
        UnsupportedFeatureError: the model has a `train_step` of its own, or images of
            a batch differ in size.
    """
    model: Any = step.model
    base = sys.modules["mmengine.model"].BaseModel
    if mode == "train" and type(model).train_step is not base.train_step:
        raise UnsupportedFeatureError(
            f"{step.model_name} has a train_step of its own, which a device that "
            "compiles its steps cannot take apart; use another device"
        )
    with torch.no_grad():
        made = model.data_preprocessor(batch, mode == "train")
    inputs, samples = made["inputs"], made.get("data_samples")
    if not samples:
        raise UnsupportedFeatureError(
            f"{step.model_name} takes batches without data samples, which are not "
            "translated for a device that compiles its steps"
        )
    return Stacked.of(samples, inputs)


def _of_stacked(step: Wrapped, batch: Stacked, mode: str) -> dict[str, Any]:
    model: Any = step.model
    count = len(batch)
    rows = [batch.row(index) for index in range(count)]
    data = {"inputs": batch.inputs, "data_samples": rows}
    if mode != "train":
        predicted = model._run_forward(data, mode="predict")
        return _result(None, {}, count, predictions=Stacked.of(predicted))
    loss, log_vars = model.parse_losses(model._run_forward(data, mode="loss"))
    check_gradient(step, loss)
    return _result(loss, detached(log_vars), count)


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


class EngineContract:
    """How a model of MMEngine's kind is trained on devrun's runner."""

    brings_optimizer = False
    step = staticmethod(engine_step)
    stacked = staticmethod(stacked_batch)

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.batches: int | None = None

    def join(self, run: Any, optimizer: Any, loss: Any) -> None:
        """Have the run tell MMEngine how far it is; a loss beside is refused.

        Raises:
            ConfigError: there is one.
        """
        if loss is not None:
            raise ConfigError(
                f"{type(self.model).__name__} gets its loss from train_step; remove "
                "the separate loss"
            )
        run.register_hook(RuntimeInfoHook())

    def optimizer(self) -> None:
        """It brings none."""
