"""What an update does with an optimizer: zero, measure and clip gradients, and step."""

from __future__ import annotations

import math
from typing import Any, Callable

import torch
from torch import Tensor
from torch.nn import utils
from torch.optim import Optimizer
from torch.optim import optimizer as of_torch

from devrun.step import UpdatePolicy
from devrun.torch_features import lacks

Clip = Callable[[Any], "Tensor | float | None"]
"""Clips the gradients of an optimizer; their norm before, if it is known."""
Zero = Callable[[Any], None]
Step = Callable[[Any], None]

_RANGED = Optimizer.profile_hook_step(lambda: None).__code__
"""What torch puts around the `step` of each class: hooks, and a range for profilers."""


def zero_function(optimizer: Any) -> Zero:
    """What `optimizer.zero_grad()` does, less its range for the profiler.

    An optimizer that has a `zero_grad` of its own keeps it.
    """
    kind = type(optimizer)
    if getattr(kind, "zero_grad", None) is not Optimizer.zero_grad or (
        "zero_grad" in vars(optimizer)
    ):
        return call_zero_grad

    def zero(optimizer: Any) -> None:
        for group in optimizer.param_groups:
            for param in group["params"]:
                param.grad = None

    return zero


def step_function(optimizer: Any) -> Step:
    """What `optimizer.step()` does, less its range for the profiler.

    That takes longer than a small model's update. Where a profiler runs, where hooks
    wait, or where anything but torch's own stands around the step, it is called whole.
    """
    whole: Any = getattr(type(optimizer), "step", None)
    if getattr(whole, "__code__", None) is not _RANGED:
        return call_step
    bare = whole.__wrapped__

    def step(optimizer: Any) -> None:
        if (
            type(optimizer).step is not whole
            or "step" in vars(optimizer)  # a scheduler's, which counts the calls
            or optimizer._optimizer_step_pre_hooks
            or optimizer._optimizer_step_post_hooks
            or of_torch._global_optimizer_pre_hooks
            or of_torch._global_optimizer_post_hooks
            or torch.autograd._profiler_enabled()
        ):
            optimizer.step()
        else:
            bare(optimizer)

    return step


def largest_gradient(optimizer: Any) -> Tensor | None:
    """The largest gradient of an optimizer; None where there is none.

    It is nan where one is nan; unlike a norm of squares, it cannot overflow.
    """
    grads = [p.grad for p in _parameters(optimizer) if p.grad is not None]
    if not grads:
        return None
    grads = [g.coalesce().values() if g.is_sparse else g for g in grads]
    largest = torch._foreach_norm([g for g in grads if g.numel()], math.inf)
    first = largest[0].device
    return torch.stack([norm.float().to(first) for norm in largest]).max()


def call_zero_grad(optimizer: Any) -> None:
    """As everybody does it."""
    optimizer.zero_grad()


def call_step(optimizer: Any) -> None:
    """As everybody does it."""
    optimizer.step()


def clip_function(policy: UpdatePolicy, *, host_shared: bool = False) -> Clip | None:
    """A function that clips the gradients of an optimizer by norm or by value.

    Where the host reads a number for nothing (`host_shared`), it gives one.
    """
    if policy.grad_clip is None:
        return None
    options = dict(policy.grad_clip)
    by_value = "clip_value" in options
    function: Any = utils.clip_grad_value_ if by_value else utils.clip_grad_norm_
    if host_shared and not by_value and not lacks("2.6"):
        function = _clipped_where_needed

    def clip(optimizer: Any) -> Tensor | float | None:
        norm: Any = function(_parameters(optimizer), **options)
        read = host_shared and isinstance(norm, Tensor)
        value: Tensor | float | None = norm.tolist() if read else norm
        return value

    return clip


def _clipped_where_needed(
    params: list[Tensor], max_norm: float, foreach: bool | None = None, **how: Any
) -> float:
    """`clip_grad_norm_`, but gradients are not multiplied by exactly 1."""
    grads = [param.grad for param in params if param.grad is not None]
    total = utils.get_total_norm(grads, foreach=foreach, **how)
    norm: float = total.item()
    if not max_norm / (norm + 1e-6) >= 1.0:  # as torch has it; also where it is nan
        utils.clip_grads_with_norm_(params, max_norm, total, foreach)
    return norm


def _parameters(optimizer: Any) -> list[Tensor]:
    return [param for group in optimizer.param_groups for param in group["params"]]
