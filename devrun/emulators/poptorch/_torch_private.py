"""Every private name of torch's that this package uses, each with the reason.

No other module here names one: the next torch that lacks one of these breaks this file.
Behind each stands the release that it is in since; all are in 2.13.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import nn

# Inside these, tensors are plain ones to torch functions: subclasses are not asked (the
# second: nor modes). The manual on extending torch uses them by these names. (2.0)
from torch._C import DisableTorchFunction, DisableTorchFunctionSubclass

# Tensors without values, and what torch raises where one is needed. `device="meta"` is
# public, but hides the device and lets shapes that depend on values pass. (2.0)
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
)

# Flattens arguments as torch itself does: named tuples and registered types. (1.8)
from torch.utils import _pytree as pytree

# The one way to see the operators of a backward pass. (2.0)
from torch.utils._python_dispatch import TorchDispatchMode

FACTS = frozenset({"_base", "_version"})
"""Attributes of a tensor, as a mode for torch functions is told of them. (1.0)"""
SETTINGS = frozenset({"_set_grad_enabled"})
"""What `torch.set_grad_enabled` is to such a mode. (1.13)"""

_NAME = "_scaled_dot_product_flash_attention_for_cpu"
CPU_ATTENTION = tuple(
    getattr(torch.ops.aten, name).default
    for name in (_NAME, f"{_NAME}_backward")
    if hasattr(torch.ops.aten, name)
)
"""The host's kernels for `scaled_dot_product_attention`, forward and backward, where
this torch has them: 2.0 makes it of products. (2.1)"""


def new_library(namespace: str) -> torch.library.Library:
    """A part of a namespace of operators; before 2.1 it can only be all of it."""
    try:
        return torch.library.Library(namespace, "FRAGMENT")
    except ValueError:
        return torch.library.Library(namespace, "DEF")


def is_composed(operator: Any) -> bool:
    """Whether torch makes it of other operators on every device. (2.0)"""
    key = "CompositeExplicitAutograd"
    return bool(torch._C._dispatch_has_kernel_for_dispatch_key(operator.name(), key))


def leaves_of(values: Any) -> list[Any]:
    """What is in a structure of arguments; `tree_leaves` of torch 2.2. (1.8)"""
    return pytree.tree_flatten(values)[0]


def version(tensor: torch.Tensor) -> int:
    """How often the tensor was changed in place; public is only to count up. (1.0)"""
    return tensor._version


def viewed(tensor: torch.Tensor) -> torch.Tensor | None:
    """The tensor that `tensor` is a view of. (1.0)"""
    return tensor._base


def registered(module: nn.Module) -> dict[str, dict[str, Any]]:
    """The module's own parameters, buffers and modules, to be put back as they were.

    The public methods leave out those that are None, and cannot put a buffer back
    without changing whether it is saved. (1.0)
    """
    own = module._parameters, module._buffers, module._modules
    return dict(zip(("Parameter", "Buffer", "Module"), own))


def validates_distributions() -> bool:
    """Whether distributions check values; public is only to set it. (1.8)"""
    return torch.distributions.Distribution._validate_args


def read_whole() -> AbstractContextManager[None]:
    """`tolist` is one call here too, where torch reads element by element. (2.1)"""
    if "tolist" not in vars(FakeTensor):
        return nullcontext()
    return replaced(FakeTensor, "tolist", torch.Tensor.tolist)


PACKS = "_pack_padded_sequence"
"""What torch packs padded sequences by; it wants their sizes on the host. (1.0)"""


@contextmanager
def replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    """`owner.name` is `value` inside this context; the only door to such changes."""
    own = vars(owner)[name]
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, own)


__all__ = [
    "CPU_ATTENTION",
    "FACTS",
    "SETTINGS",
    "DataDependentOutputException",
    "DisableTorchFunction",
    "DisableTorchFunctionSubclass",
    "DynamicOutputShapeException",
    "FakeTensor",
    "FakeTensorMode",
    "TorchDispatchMode",
    "leaves_of",
    "new_library",
    "pytree",
    "read_whole",
    "registered",
    "replaced",
    "validates_distributions",
    "version",
    "viewed",
]
