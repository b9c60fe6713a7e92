"""Zeroing and clipping gradients as torch does, without its cost where nothing is due.

Both run at every update, so they are on the path that decides what devrun adds to a
loop written by hand.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.linalg import vector_norm
from torch.nn import utils
from torch.optim import Optimizer

from devrun.step import UpdatePolicy

Clip = Callable[[Any], "Tensor | float | None"]
"""Clips the gradients of an optimizer; their norm before, if it is known."""
Zero = Callable[[Any], None]

_SURELY_BELOW = 0.99
"""Below this share of `max_norm` no rounding of torch's factor makes it less than 1."""


class _Parameters:
    """All parameters of an optimizer, collected again only when a group was added.

    Walking a large model's parameters costs more than what is done with them.
    """

    def __init__(self) -> None:
        self.alike = True
        """Whether all have one type and device, and so their gradients."""
        self._params: list[Tensor] = []
        self._groups = -1

    def __call__(self, optimizer: Any) -> list[Tensor]:
        groups = optimizer.param_groups
        if len(groups) != self._groups:
            self._params = [param for group in groups for param in group["params"]]
            self._groups = len(groups)
            kinds = {(param.dtype, param.device) for param in self._params}
            self.alike = len(kinds) < 2
        return self._params


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


def largest_gradient() -> Clip:
    """A function that measures the largest gradient of an optimizer, and clips nothing.

    It is nan where one is nan; unlike a norm of squares, it cannot overflow.
    """
    params_of = _Parameters()

    def measure(optimizer: Any) -> Tensor | None:
        grads = [p.grad for p in params_of(optimizer) if p.grad is not None]
        if not grads:
            return None
        grads = [g.coalesce().values() if g.is_sparse else g for g in grads]
        largest = torch._foreach_norm([g for g in grads if g.numel()], math.inf)
        first = largest[0].device
        return torch.stack([norm.float().to(first) for norm in largest]).max()

    return measure


def call_zero_grad(optimizer: Any) -> None:
    """As everybody does it."""
    optimizer.zero_grad()


def clip_function(policy: UpdatePolicy, *, host_shared: bool = False) -> Clip | None:
    """A function that clips the gradients of an optimizer by norm or by value.

    Where the host reads a number for nothing (`host_shared`), the norm is looked at
    first: gradients that torch would multiply by exactly 1 are left alone.
    """
    if policy.grad_clip is None:
        return None
    options = dict(policy.grad_clip)
    by_norm = "clip_value" not in options
    if by_norm and host_shared and hasattr(utils, "get_total_norm"):  # torch 2.6
        return _clip_when_due(options)
    function: Any = utils.clip_grad_norm_ if by_norm else utils.clip_grad_value_
    params_of = _Parameters()

    def clip(optimizer: Any) -> Tensor | float | None:
        norm: Any = function(params_of(optimizer), **options)
        read = host_shared and norm is not None
        value: Tensor | float | None = norm.tolist() if read else norm
        return value

    return clip


def _clip_when_due(options: dict[str, Any]) -> Clip:
    measure = dict(options)
    max_norm = float(measure.pop("max_norm"))
    limit = _SURELY_BELOW * max_norm
    foreach = measure.get("foreach")
    norm_type = float(measure.get("norm_type", 2.0))
    simple = measure.keys() <= {"norm_type"}
    params_of = _Parameters()

    def clip(optimizer: Any) -> float:
        params = params_of(optimizer)
        grads = [param.grad for param in params if param.grad is not None]
        if simple and params_of.alike and grads:
            # what torch does with them, less its search for groups of one type
            norms = [vector_norm(grad, norm_type) for grad in grads]
            norm = vector_norm(torch.stack(norms), norm_type)
        else:
            norm = utils.get_total_norm(grads, **measure)
        value: float = norm.tolist()
        if not value < limit:  # nan is not below anything
            utils.clip_grads_with_norm_(params, max_norm, norm, foreach)
        return value

    return clip
