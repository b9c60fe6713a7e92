"""Moving a model and its optimizer together, and what is inside a wrapper."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from devrun.checkpoint.state import same_layout
from devrun.devices.options import EagerOptions
from devrun.dist import local_rank
from devrun.errors import ConfigError, DeviceUnavailableError
from devrun.models.step_module import StepModule
from devrun.parallel.strategy import follow, optimizers_in
from devrun.tensors import map_tensors, tensors_in, to_device


def chosen_index(device: str, asked: int | None, here: int) -> int | None:
    """Which of the `here` devices of a machine this process takes; None: the current.

    Raises:
        ConfigError: one index for several processes of a machine.
        DeviceUnavailableError: fewer devices than that.
    """
    place = local_rank()
    if place is not None and asked is not None:
        raise ConfigError(
            f"{device}:{asked} names one device, but a launcher started several "
            f"processes: give --device {device}"
        )
    index = asked if place is None else place
    if index is not None and index >= here:
        raise DeviceUnavailableError(
            f"{device}:{index} is not here: {here} visible, counted from 0; start at "
            "most one process a device"
        )
    return index


def move_together(
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
        old: new for old, new in zip(before, after) if old is not new
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
    same_layout(optimizer)
    for group in optimizer.param_groups:
        # torch keeps the step counter on the host unless the update is one kernel
        counter_moves = bool(group.get("capturable") or group.get("fused"))
        for param in group["params"]:
            state = optimizer.state.get(param, {})
            for key, value in state.items():
                if key != "step" or counter_moves:
                    state[key] = to_device(value, param.device)


def moved(batch: Any, device: torch.device, options: EagerOptions) -> Any:
    """The batch on the device, its images in the memory format asked for."""
    batch = to_device(batch, device, non_blocking=True)
    return map_tensors(_channels_last, batch) if options.channels_last else batch


def bring_inputs(module: nn.Module, device: torch.device) -> Any:
    """Let tensors of the host that `module` is called with arrive on its device.

    For calls by a user's own loop, such as MMCV's `single_gpu_test`, as by MMCV's
    `MMDataParallel`. Returns a handle with `remove`.
    """
    hook = functools.partial(_brought, device)
    return module.register_forward_pre_hook(hook, with_kwargs=True)


def _brought(device: torch.device, module: nn.Module, *given: Any) -> Any:
    if all(tensor.device.type == device.type for tensor in tensors_in(given)):
        return None
    return to_device(given, device)


def _channels_last(tensor: Tensor) -> Tensor:
    """An image tensor (4-d, floating or bytes) in that memory format."""
    image = tensor.is_floating_point() or tensor.dtype == torch.uint8
    if tensor.dim() == 4 and image:
        return tensor.contiguous(memory_format=torch.channels_last)
    return tensor


class ForwardDone:
    """Stands for a model whose forward pass of the first micro-batch is done."""

    def __init__(self, model: StepModule, outputs: Any) -> None:
        self.module, self._outputs = model, outputs

    def __call__(self, batch: Any, mode: str) -> Any:
        outputs, self._outputs = self._outputs, None
        return self.module(batch, mode) if outputs is None else outputs

    def parameters(self) -> Any:
        return self.module.parameters()


def step_module_of(model: Any) -> Any:
    """The `StepModule` inside what `prepare` returned."""
    wrapped = isinstance(model, (DistributedDataParallel, ForwardDone))
    return model.module if wrapped else model


def user_module_of(model: Any) -> nn.Module:
    """The user's module, however it is wrapped; itself when it is not."""
    inner = step_module_of(model)
    module: nn.Module = inner.module if isinstance(inner, StepModule) else inner
    return module
