"""The device's own copies of a model's weights and buffers, and who has the newest."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from poptorch import _machine, _wrapped
from poptorch._errors import Error
from poptorch._refusals import NUMBERS, collecting, refuse
from poptorch._torch_private import DisableTorchFunctionSubclass
from poptorch.enums import CommGroupType


class Variable:
    """One parameter or buffer: the host's tensor and the device's.

    A buffer has one on each replica. A parameter has one for all, or one for each of
    its groups of replicas, whose values are along the host's first dimension.
    """

    def __init__(
        self, name: str, slot: int, host: torch.Tensor, replicas: int, buffer: bool
    ) -> None:
        self.name = name
        self.slot = slot
        self.host = host
        self.buffer = buffer
        self.groups = replica_groups(host, name, replicas)
        with DisableTorchFunctionSubclass():
            self.trained = host.requires_grad and not buffer
            copies = replicas if buffer else len(set(self.groups or [0]))
            self.device = [
                _device_copy(value).requires_grad_(self.trained and not buffer)
                for value in self._values(copies)
            ]

    def _values(self, count: int) -> list[torch.Tensor]:
        """The host's value for each tensor of the device."""
        return list(self.host.detach()) if self.groups else [self.host] * count

    def on(self, replica: int) -> torch.Tensor:
        """The tensor that a replica computes with."""
        if self.groups:
            return self.device[self.groups[replica]]
        return self.device[replica if len(self.device) > 1 else 0]

    def upload(self) -> None:
        """Host to device."""
        for copy, value in zip(self.device, self._values(len(self.device))):
            copy.copy_(value)

    @property
    def lost(self) -> bool:
        """Whether the host has others than the device, of which both had the same."""
        with DisableTorchFunctionSubclass():
            host, (mine, *more) = self.host.detach(), self.device
            host = host.to(mine.dtype)
            same = self.groups or more or ((host == mine) | (host != host)).all()
            return not same

    def download(self) -> None:
        """Device to host."""
        whole = torch.stack(self.device) if self.groups else self.device[0]
        self.host.copy_(whole)


def replica_groups(host: torch.Tensor, name: str, replicas: int) -> list[int]:
    """The group of each replica; empty where all share the tensor.

    Raises:
        Error: Groups that do not divide the replicas, or a first dimension of another
            size than their number.
    """
    kind, shards = host.__dict__.get(_wrapped.GROUPING, (CommGroupType.All, 0))
    if kind == CommGroupType.All:
        return []
    size = 1 if kind == CommGroupType.NoGrouping else shards
    if size < 1 or replicas % size:
        raise Error(f"{name}: {replicas} replicas are no groups of {size}")
    count = replicas // size
    if not host.dim() or host.shape[0] != count:
        raise Error(
            f"{name}: {count} groups of replicas need a first dimension of {count}, "
            f"not the shape {list(host.shape)}"
        )
    apart = kind == CommGroupType.Orthogonal
    return [r % count if apart else r // size for r in range(replicas)]


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

    def freed_or_frozen(self) -> bool:
        """Whether other weights are to be trained now than those that are."""
        with DisableTorchFunctionSubclass():
            weights = [one for one in self.variables if not one.buffer]
            return any(one.trained != one.host.requires_grad for one in weights)

    @torch.no_grad()
    def upload(self, names: set[str] | None = None) -> None:
        """Host to device: everything, or these names."""
        with DisableTorchFunctionSubclass():
            for variable in self.variables:
                if names is None or variable.name in names:
                    variable.upload()
        _machine.counts["weights_to_device"] += 1
        if names is None:
            self.newer_on_device = False
            self.version += 1

    @torch.no_grad()
    def download(self) -> None:
        """Device to host."""
        with DisableTorchFunctionSubclass():
            for variable in self.variables:
                variable.download()
        _machine.counts["weights_to_host"] += 1
        self.newer_on_device = False

    def note_lost(self) -> None:
        """Write down, where somebody collects, what the host changed in vain."""
        if self.newer_on_device or collecting() is None:
            return
        for variable in self.variables:
            if variable.lost:
                error = Error(
                    f"weights: {variable.name} was changed on the host, which no call "
                    "of copyWeightsToDevice() told the IPU: it goes on with its own"
                )
                refuse(error, NUMBERS, True, _wrapped.written_at(variable.host))

    def cut(self) -> None:
        """What a run wrote into buffers has no graph in the next."""
        for variable in self.variables:
            for tensor in variable.device if variable.buffer else ():
                tensor.detach_()

    def changed(self) -> None:
        """A run on the device made the host's values stale."""
        self.newer_on_device = True
        self.version += 1

    def trained(self) -> dict[int, tuple[str, list[torch.Tensor]]]:
        """For the optimizer: id of the host's tensor to name and device tensors."""
        return {id(v.host): (v.name, v.device) for v in self.variables}

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
        for every in (nn.Module.named_parameters, nn.Module.named_buffers):
            yield from every(module, prefix, recurse=False, remove_duplicate=False)
