"""Pinned memory: host tensors that say so, since torch has no allocator for it here.

torch asks a backend's hooks for the allocator of pinned memory, and hooks written in
Python cannot give one. So the public functions that take `pin_memory` make ordinary
host tensors and mark their storage; views share it, and are pinned as well.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor

from habana_frameworks._emulation.tensor import HpuTensor
from habana_frameworks._emulation.torch_private import let_scripts_call

FACTORIES = (
    *("empty", "empty_permuted", "empty_strided", "zeros", "ones", "full", "eye"),
    *("arange", "linspace", "logspace", "tensor"),
    *("rand", "randn", "randint", "randperm"),
    *("empty_like", "zeros_like", "ones_like", "full_like"),
    *("rand_like", "randn_like", "randint_like"),
)
METHODS = (
    *("new_empty", "new_empty_strided", "new_full", "new_ones", "new_zeros"),
    "new_tensor",
)
MARK = "_hpu_pinned"


def pin_memory(tensor: Tensor, device: Any = None) -> Tensor:
    """A pinned copy; the tensor itself if it is pinned. RuntimeError on the device."""
    if type(tensor) is HpuTensor:
        raise RuntimeError(
            "cannot pin 'hpu' memory: only dense CPU tensors can be pinned"
        )
    if is_pinned(tensor):
        return tensor
    return _marked(tensor.detach().clone().requires_grad_(tensor.requires_grad))


def is_pinned(tensor: Tensor, device: Any = None) -> bool:
    """Whether its storage was marked."""
    if tensor.layout is not torch.strided:
        return False
    return hasattr(tensor.untyped_storage(), MARK)


def _marked(tensor: Tensor) -> Tensor:
    if tensor.device.type != "cpu":
        raise RuntimeError(
            f"cannot pin {tensor.device}: only dense CPU tensors can be pinned"
        )
    setattr(tensor.untyped_storage(), MARK, True)
    return tensor


def _pinning(original: Any, name: str) -> Any:
    @functools.wraps(original)
    def make(*args: Any, **kwargs: Any) -> Any:
        if "pin_memory" in kwargs and kwargs.pop("pin_memory"):
            return _marked(original(*args, **kwargs))
        return original(*args, **kwargs)

    # so that it can be pickled, and written out in a graph
    make.__module__ = "torch._tensor" if "." in name else "torch"
    make.__qualname__ = name
    return make


def install(replace: Any) -> None:
    """Put the wrappers where programs look the functions up."""
    # `with torch.device(...)` compares with the functions that are here before.
    with torch.device("cpu"):
        torch.empty(0)
    for name in FACTORIES:
        factory = _pinning(getattr(torch, name), name)
        replace(torch, name, factory)
        let_scripts_call(factory, f"aten::{name}")
    for name in METHODS:
        replace(Tensor, name, _pinning(getattr(Tensor, name), f"Tensor.{name}"))
    replace(Tensor, "pin_memory", pin_memory)
    replace(Tensor, "is_pinned", is_pinned)
