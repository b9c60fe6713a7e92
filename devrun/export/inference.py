"""The model of a run as a function of named tensors, which compilers take."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from devrun.errors import ConfigError
from devrun.models.calls import TARGET_KEYS
from devrun.models.step_module import StepModule


class Inference(nn.Module):
    """`forward({name: tensor [N, ...]})` gives a dict of tensors.

    Args:
        model: the user's, in evaluation mode.
        order: names of the inputs that it takes by position.
        fixed: its other arguments, which are no tensors.
    """

    def __init__(
        self, model: nn.Module, order: Sequence[str], fixed: Mapping[str, Any]
    ) -> None:
        super().__init__()
        self.model, self.order, self.fixed = model, tuple(order), dict(fixed)

    def forward(self, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        placed = [inputs[name] for name in self.order]
        named = {name: v for name, v in inputs.items() if name not in self.order}
        return named_outputs(self.model(*placed, **named, **self.fixed))


def inference_of(step: StepModule, batch: Any) -> tuple[Inference, dict[str, Tensor]]:
    """What a prediction for `batch` calls, and the inputs that it was called with.

    Labels are left out. Inputs have the names of the arguments of `forward`.

    Raises:
        ConfigError: it is called with something else than tensors, not called at all,
            or returns no tensor.
    """
    calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = []
    model = step.module

    def note(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        calls.append((args, kwargs))

    step.eval()
    handle = model.register_forward_pre_hook(note, with_kwargs=True)
    try:
        with torch.no_grad():
            step(batch, "predict")
    finally:
        handle.remove()
    if not calls:
        raise ConfigError(
            f"a prediction of {step.model_name} does not call its forward, which is "
            "what is exported"
        )
    args, kwargs = calls[0]
    order = list(step.signature.parameters)[: len(args)]
    given = {**dict(zip(order, args)), **kwargs}
    if len(given) != len(args) + len(kwargs):  # forward(*inputs)
        order = [f"input_{place}" for place in range(len(args))]
        given = {**dict(zip(order, args)), **kwargs}
    given = {name: value for name, value in given.items() if name not in TARGET_KEYS}
    inputs = {name: value for name, value in given.items() if isinstance(value, Tensor)}
    fixed = {name: value for name, value in given.items() if name not in inputs}
    for name in order:
        if name not in inputs:
            raise ConfigError(
                f"{step.model_name}.forward takes {type(given.get(name)).__name__} as "
                f"{name!r}; a model is exported that takes tensors"
            )
    whole = Inference(model, order, fixed).eval()
    with torch.no_grad():
        if not whole(inputs):
            raise ConfigError(
                f"{step.model_name}.forward returns no tensor, or none in a dict or a "
                "tuple: that is what an exported program returns"
            )
    return whole, inputs


def named_outputs(output: Any) -> dict[str, Tensor]:
    """The tensors of what a model returned: a tensor, a dict (of Hugging Face, too) or
    a tuple; without a loss."""
    if isinstance(output, Tensor):
        return {"output": output}
    if isinstance(output, (tuple, list)):
        output = {f"output_{place}": value for place, value in enumerate(output)}
    fields = output.items() if isinstance(output, Mapping) else ()
    return {k: v for k, v in fields if isinstance(v, Tensor) and k != "loss"}


def resized(inputs: Mapping[str, Tensor], count: int) -> dict[str, Tensor]:
    """`inputs` with `count` samples, of which the first are taken again if need be."""
    changed = {}
    for name, value in inputs.items():
        rows = torch.arange(count) % value.size(0)
        changed[name] = value[rows]
    return changed
