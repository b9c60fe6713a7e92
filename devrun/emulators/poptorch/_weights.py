"""The device's own copies of a model's weights and buffers, and who has the newest."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from poptorch import emulation


class Variable:
    """One parameter or buffer: the host's tensor and the device's, per replica."""

    def __init__(
        self, name: str, slot: int, host: torch.Tensor, replicas: int, buffer: bool
    ) -> None:
        self.name = name
        self.slot = slot
        self.host = host
        self.buffer = buffer
        with torch._C.DisableTorchFunctionSubclass():
            self.trained = host.requires_grad and not buffer
            first = _device_copy(host).requires_grad_(self.trained)
            copies = replicas if buffer else 1
            self.device = [first]
            self.device += [_device_copy(host) for _ in range(copies - 1)]

    def on(self, replica: int) -> torch.Tensor:
        """The tensor that a replica computes with."""
        return self.device[replica if len(self.device) > 1 else 0]


def _device_copy(host: torch.Tensor) -> torch.Tensor:
    copy = host.detach().clone(memory_format=torch.contiguous_format)
    return copy.float() if copy.dtype in (torch.float64, torch.bfloat16) else copy


class DeviceWeights:
    """All variables of one executor.

    `newer_on_device` says that the host's values are stale; `version` grows with each
    change on the device, so that others can tell whether they have seen it.
    """

    def __init__(self) -> None:
        self.variables: list[Variable] = []
        self.newer_on_device = False
        self.version = 0
        self.optimizer_copies = 0

    def add(self, variable: Variable) -> None:
        """Take in one more."""
        self.variables.append(variable)

    @torch.no_grad()
    def upload(self, names: set[str] | None = None) -> None:
        """Host to device: everything, or these names."""
        with torch._C.DisableTorchFunctionSubclass():
            for variable in self.variables:
                if names is None or variable.name in names:
                    for copy in variable.device:
                        copy.copy_(variable.host)
        emulation.counts["weights_to_device"] += 1
        if names is None:
            self.newer_on_device = False
            self.version += 1

    @torch.no_grad()
    def download(self) -> None:
        """Device to host."""
        with torch._C.DisableTorchFunctionSubclass():
            for variable in self.variables:
                variable.host.copy_(variable.device[0])
        emulation.counts["weights_to_host"] += 1
        self.newer_on_device = False

    def changed(self) -> None:
        """A run on the device made the host's values stale."""
        self.newer_on_device = True
        self.version += 1

    def trained(self) -> dict[int, tuple[str, torch.Tensor]]:
        """For the optimizer: id of the host's tensor to name and device tensor."""
        return {id(v.host): (v.name, v.device[0]) for v in self.variables}

    def fill(self, env: list[Any], replica: int) -> None:
        """Put the variables into their slots."""
        for variable in self.variables:
            env[variable.slot] = variable.on(replica)

    def copies_per_weight(self) -> int:
        """How many state tensors the optimizer keeps for each weight."""
        return self.optimizer_copies

    def entries(self, graph: Any) -> Iterator[tuple[int, torch.Tensor, bool]]:
        """Slot, tensor and whether it is trained, for the memory estimate."""
        for variable in self.variables:
            yield variable.slot, variable.device[0], variable.trained


def named_variables(
    model: nn.Module, user_model: Any
) -> Iterator[tuple[str, torch.Tensor, bool]]:
    """Parameters and buffers once each, under the names of the user's model."""
    names: dict[int, str] = {}
    if isinstance(user_model, nn.Module):
        for name, tensor in _walk(user_model):
            names.setdefault(id(tensor), name)
    seen: set[int] = set()
    for name, tensor in _walk(model):
        if id(tensor) not in seen:
            seen.add(id(tensor))
            is_buffer = not isinstance(tensor, nn.Parameter)
            yield names.get(id(tensor), name), tensor, is_buffer


def _walk(model: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Without the methods of the model, which a wrapped one overrides."""
    for prefix, module in model.named_modules(remove_duplicate=False):
        for group in (module._parameters, module._buffers):
            for name, tensor in group.items():
                if tensor is not None:
                    yield f"{prefix}.{name}" if prefix else name, tensor
