"""Moving a model and its optimizer together, and what is inside a wrapper."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from devrun.data.batch import to_device
from devrun.devices.options import EagerOptions
from devrun.errors import ConfigError
from devrun.models.step_module import StepModule
from devrun.parallel.strategy import follow, optimizers_in


def place(
    model: StepModule, optimizer: Any, device: torch.device, options: EagerOptions
) -> None:
    """Put weights and existing optimizer state on `device`, in place.

    A resumed optimizer holds state before the model is placed. Where a device needs
    new parameter objects, the optimizer's groups and state follow them.
    """
    before = list(model.parameters())
    tied = _tied_names(model)
    model.to(device)
    if options.channels_last:
        model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    _tie(model, tied)
    after = list(model.parameters())
    moved: dict[Tensor, Tensor] = {
        old: new for old, new in zip(before, after, strict=True) if old is not new
    }
    follow(optimizer, moved)
    for each in optimizers_in(optimizer):
        _move_state(each)


def _tied_names(model: nn.Module) -> list[tuple[str, str]]:
    """(first name, further name) of each parameter that has several."""
    first: dict[int, str] = {}
    named = model.named_parameters(remove_duplicate=False)
    pairs = [(first.setdefault(id(param), name), name) for name, param in named]
    return [pair for pair in pairs if pair[0] != pair[1]]


def _tie(model: nn.Module, tied: list[tuple[str, str]]) -> None:
    """Make one parameter of each pair again, where the move made two."""
    for first, name in tied:
        owner, _, attribute = name.rpartition(".")
        setattr(model.get_submodule(owner), attribute, model.get_parameter(first))


def _move_state(optimizer: Optimizer) -> None:
    for group in optimizer.param_groups:
        # torch keeps the step counter on the host unless the update is one kernel
        counter_moves = bool(group.get("capturable") or group.get("fused"))
        for param in group["params"]:
            state = optimizer.state.get(param, {})
            for key, value in state.items():
                if key != "step" or counter_moves:
                    state[key] = to_device(value, param.device)


def compile_in_place(module: nn.Module, setting: bool | Mapping[str, Any]) -> None:
    """Compile `module` under its own name, so that its `state_dict` keys stay."""
    if not isinstance(setting, Mapping):
        if setting:
            module.compile()
        return
    try:
        module.compile(**setting)
    except TypeError as error:
        raise ConfigError(
            f"compile: {dict(setting)!r} is not for torch.compile: {error}"
        ) from error


def step_module_of(model: Any) -> Any:
    """The `StepModule` inside what `prepare` returned."""
    return model.module if isinstance(model, DistributedDataParallel) else model


def user_module_of(model: Any) -> nn.Module:
    """The user's module, however it is wrapped; itself when it is not."""
    inner = step_module_of(model)
    module: nn.Module = inner.module if isinstance(inner, StepModule) else inner
    return module
