"""Operators that a device has no kernel for: done on the host, and all of them named.

A device of a torch plug-in may lack many. The first step of each kind is looked at, and
goes on past the first of them; so a user hears of all at once. In a backward pass torch
may even end the process by the exception that such a device raises.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from devrun.tensors import map_tensors, tensors_in

_CALL = re.compile(r'File "(.+?)", line (\d+)')
_STATISTICS = ("running_mean", "running_var")


class MissingOperators(TorchDispatchMode):
    """Within, what `device` refuses is done on the host; `found`: operator -> line.

    The line is the user's that called it, or whose backward pass did; maybe None.
    """

    def __init__(self, device: torch.device, found: dict[str, str | None]) -> None:
        super().__init__()
        self._device, self._found = device, found

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        try:
            return func(*args, **kwargs)
        except NotImplementedError:
            if func.is_view:  # what it gives would share no memory with its operand
                raise
        name = func._schema.name
        if name not in self._found:
            self._found[name] = _users_line()
        return self._on_host(func, args, kwargs)

    def _on_host(self, func: Any, args: Any, kwargs: Any) -> Any:
        ours: dict[int, tuple[Tensor, Tensor]] = {}

        def fetched(tensor: Tensor) -> Tensor:
            if tensor.device.type != self._device.type:
                return tensor
            copied = tensor.cpu()
            ours[id(copied)] = (tensor, copied)
            return copied

        args, kwargs = map_tensors(fetched, (list(args), dict(kwargs)))
        if kwargs.get("device") is not None:
            kwargs["device"] = torch.device("cpu")
        given = func(*args, **kwargs)
        for copied in _written(func, args, kwargs):
            if id(copied) in ours:
                ours[id(copied)][0].copy_(copied)

        def returned(tensor: Tensor) -> Tensor:
            known = ours.get(id(tensor))
            return tensor.to(self._device) if known is None else known[0]

        return map_tensors(returned, given)


def _written(func: Any, args: Any, kwargs: Any) -> Iterator[Tensor]:
    """The operands that an operator changes in place.

    Its schema says which they are, but for the statistics of a BatchNorm; a tensor's
    version does not, since nothing counts it within a dispatch mode.
    """
    for index, argument in enumerate(func._schema.arguments):
        alias, name = argument.alias_info, argument.name
        if name in _STATISTICS or (alias is not None and alias.is_write):
            given = args[index] if index < len(args) else kwargs.get(name)
            yield from tensors_in(given)


def _users_line() -> str | None:
    from devrun.probes import sites  # only where something is missing

    node: Any = torch._C._current_autograd_node()
    if node is None:
        return sites.here(3)
    # what it is the backward pass of, as torch keeps it to detect anomalies
    calls = _CALL.findall("".join(node.metadata.get("traceback_", ())))
    return sites.user_line((file, int(line)) for file, line in reversed(calls))


@contextmanager
def looked_for(device: torch.device, found: dict[str, str | None]) -> Iterator[None]:
    """`MissingOperators`, and nodes of a backward pass know who made them."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Anomaly Detection")
        anomalies = torch.autograd.set_detect_anomaly(True, check_nan=False)
    with anomalies, MissingOperators(device, found):
        yield


def without_kernels(device: str, found: Mapping[str, str | None]) -> str:
    """A clause for a message: which they are, and where they are called."""
    told = [f"{name} ({line})" if line else name for name, line in found.items()]
    return f"device {device!r} has no kernel for {', '.join(told)}"
