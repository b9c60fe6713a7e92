"""`performance: fast`: what makes a device fast, by its features and the model's.

An adapter has the table (`EagerAdapter.switches`), so that two runs of one seed decide
alike. What the user set stays.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

import torch
from torch import nn

from devrun.models.step_module import wrap_fp16_model
from devrun.parallel.strategy import optimizers_in
from devrun.step import UpdatePolicy

_WHOLE = ("fused", "compile", "channels_last")
"""What an engine that divides the weights over processes does its own way."""

logger = logging.getLogger("devrun")


def hasten(
    adapter: Any, model: Any, optimizer: Any, policy: UpdatePolicy, *, divided: bool
) -> UpdatePolicy:
    """Set what the adapter's `switches` name and nobody has set; say which.

    Args:
        divided: weights are spread over processes.

    Returns:
        The policy from now on.
    """
    options = adapter.options
    given = {f.name: getattr(options, f.name) for f in fields(options)}
    given["precision"] = None if policy.precision_open else policy.precision
    groups = [group for each in optimizers_in(optimizer) for group in each.param_groups]
    chosen = {group.get("fused") for group in groups} - {None}
    given["fused"] = chosen or None
    settings = {
        key: value
        for key, value in adapter.switches(model.module, optimizer).items()
        if given.get(key) is None and not (divided and key in _WHOLE)
    }
    shown = ", ".join(f"{key}: {value}" for key, value in settings.items())
    logger.info("performance: fast on %s sets %s", adapter.name, shown or "nothing")
    if settings.pop("fused", False):
        # as `fused=True` would have set it when the optimizer was built
        for each in optimizers_in(optimizer):
            each.defaults["fused"] = True
            for group in each.param_groups:
                group["fused"] = True
    adapter.precision = settings.pop("precision", None)
    adapter.options = replace(options, **settings)
    if adapter.precision is None:
        return policy
    wrap_fp16_model(model.module)
    return replace(policy, precision=adapter.precision)


def has_convolutions(model: nn.Module) -> bool:
    """Whether there are convolutions over images, and none over volumes, whose weights
    have no channels-last format of four dimensions."""
    images = any(isinstance(module, nn.Conv2d) for module in model.modules())
    return images and all(param.dim() < 5 for param in model.parameters())


def can_fuse(optimizer: Any, model: nn.Module, device: torch.device) -> bool:
    """Whether torch has an update in one kernel for these weights on this device."""
    if optimizer is None or any(getattr(m, "sparse", False) for m in model.modules()):
        return False  # no fused update takes sparse gradients
    return all(
        type(each).__module__.startswith("torch.optim.")
        and "fused" in each.defaults
        and all(_fuses(type(each), group, device) for group in each.param_groups)
        for each in optimizers_in(optimizer)
    )


def _fuses(kind: Any, group: Mapping[str, Any], device: torch.device) -> bool:
    """Whether a fused update of one number of each type of the group succeeds."""
    if group.get("foreach") or group.get("differentiable"):
        return False
    accepted = inspect.signature(kind).parameters.keys() & group.keys() - {"params"}
    given = {**{key: group[key] for key in accepted}, "foreach": None, "fused": True}
    for dtype in {param.dtype for param in group["params"]}:
        probe = nn.Parameter(torch.zeros(1, dtype=dtype, device=device))
        probe.grad = torch.zeros_like(probe)
        try:
            kind([probe], **given).step()
        except (RuntimeError, TypeError, ValueError):
            return False
    return True
