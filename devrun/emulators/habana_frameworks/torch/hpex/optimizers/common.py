"""What the fused optimizers share."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Callable

import torch
from torch import Tensor

from habana_frameworks._emulation.dispatch import one_launch, run_kernel
from habana_frameworks._emulation.plans import Kernel
from habana_frameworks._emulation.regions import inside_kernel
from habana_frameworks.torch.core.step_closure import _mark_step_if_lazy

Closure = Callable[[], Any]


@contextmanager
def fused() -> Iterator[None]:
    """A fused kernel: a marker before and after it in lazy mode, one launch in eager.

    No gradients inside.
    """
    _mark_step_if_lazy()
    with torch.no_grad(), one_launch():
        yield
    _mark_step_if_lazy()


def kernel(
    kind: Kernel,
    compute: Callable[..., Any],
    lists: list[list[Tensor]],
    written: list[list[Tensor]],
) -> None:
    """One fused kernel over lists of tensors, between two markers in lazy mode."""
    _mark_step_if_lazy()
    run_kernel(kind, compute, lists, written)
    _mark_step_if_lazy()


def zeros_like(tensor: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """A state in new memory, which the fused kernel fills: no launch of its own."""
    with torch.no_grad(), inside_kernel():
        return torch.zeros_like(tensor, dtype=dtype)


def evaluate(closure: Closure | None) -> Any:
    """The loss that `closure` computes, with gradients; None without one."""
    if closure is None:
        return None
    with torch.enable_grad():
        return closure()


def pairs(group: dict[str, Any], name: str) -> list[tuple[Tensor, Tensor]]:
    """(parameter, gradient) of those that have one; RuntimeError for a sparse one."""
    found = []
    for parameter in group["params"]:
        gradient = parameter.grad
        if gradient is None:
            continue
        if gradient.is_sparse:
            raise RuntimeError(f"{name} does not support sparse gradients")
        found.append((parameter, gradient))
    return found


def refuse_negative(**values: float) -> None:
    """ValueError for a hyper-parameter below zero."""
    for name, value in values.items():
        if value < 0.0:
            raise ValueError(f"Invalid {name}: {value} - should be >= 0.0")


def next_step(group: dict[str, Any]) -> int:
    """Count this update in the group, where the SDK keeps the number."""
    group["step"] = group.get("step", 0) + 1
    return int(group["step"])
