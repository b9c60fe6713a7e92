"""The SDK's fused optimizers and clipping, where the numbers stay torch's.

A converted optimizer has the groups, hyper-parameters and hooks of the one it stands
for. It also has its class name and its layout of `state_dict`, so that a checkpoint
does not tell on which device it was written.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from devrun.devices.gradients import Clip
from devrun.devices.hpu.sdk import SDK
from devrun.step import UpdatePolicy

logger = logging.getLogger("devrun")

_ADAM_KEYS = ("lr", "betas", "eps", "weight_decay")
_PLAIN_ADAM = {"amsgrad": False, "maximize": False, "differentiable": False}


@dataclass(frozen=True)
class Fused:
    """What one optimizer becomes.

    `arguments` pass on; a hyper-parameter in `only` must have that value in every
    group. With `counts_by_parameter` the original keeps its step counter in the state
    of each parameter, the SDK in the group.
    """

    name: str
    arguments: tuple[str, ...]
    only: Mapping[str, Any]
    counts_by_parameter: bool = False


FUSED: Mapping[str, Fused] = {
    "AdamW": Fused("FusedAdamW", _ADAM_KEYS, _PLAIN_ADAM, counts_by_parameter=True),
    "Adam": Fused(
        "FusedAdamW",
        _ADAM_KEYS,
        {**_PLAIN_ADAM, "weight_decay": 0},
        counts_by_parameter=True,
    ),
    "SGD": Fused(
        "FusedSGD",
        ("lr", "momentum", "dampening", "weight_decay", "nesterov"),
        {"maximize": False, "differentiable": False},
    ),
}
"""Of torch.optim, by class name."""


def make_gradients_dense(model: nn.Module) -> None:
    """Have embeddings make the same gradients dense: a Gaudi has no sparse tensors."""
    for name, one in model.named_modules():
        if isinstance(one, (nn.Embedding, nn.EmbeddingBag)) and one.sparse:
            one.sparse = False
            logger.info("hpu: %s makes dense gradients: there are no sparse ones", name)


def converted(sdk: SDK, optimizer: Optimizer) -> Optimizer:
    """A fused optimizer with the same state; itself, and a log line, if none exists."""
    name = type(optimizer).__name__
    reason = _obstacle(sdk, optimizer)
    if reason is not None:
        logger.warning("hpu: optimizer %s stays as it is: %s", name, reason)
        for group in optimizer.param_groups:
            if group.get("fused"):  # torch's kernels, which a Gaudi does not have
                group["fused"] = None
        return optimizer
    rule = FUSED[name]
    made = _as_fused(sdk, optimizer, rule)
    logger.info("hpu: optimizer %s runs as %s", name, rule.name)
    return made


def _obstacle(sdk: SDK, optimizer: Optimizer) -> str | None:
    kind = type(optimizer)
    rule = FUSED.get(kind.__name__)
    if rule is None or kind is not getattr(torch.optim, kind.__name__, None):
        return "no fused optimizer does the same"
    for group in optimizer.param_groups:
        for key, accepted in rule.only.items():
            if group.get(key, accepted) != accepted:
                return f"{rule.name} knows no {key}={group[key]!r}"
        if isinstance(group.get("lr"), Tensor):
            return f"{rule.name} takes no tensor as learning rate"
        if group.get("capturable") or not all(
            param.is_floating_point() for param in group["params"]
        ):
            return f"{rule.name} takes plain floating-point parameters only"
    return None


def _as_fused(sdk: SDK, optimizer: Optimizer, rule: Fused) -> Optimizer:
    base: Any = getattr(sdk.optimizers, rule.name)
    kind: Any = type(type(optimizer).__name__, (_Translated, base), {"rule": rule})
    arguments = {
        key: optimizer.defaults[key]
        for key in rule.arguments
        if key in optimizer.defaults
    }
    made: Any = kind([dict(group) for group in optimizer.param_groups], **arguments)
    known = {key for group in optimizer.param_groups for key in group}
    kind.own = {key: value for key, value in made.defaults.items() if key not in known}
    if rule.counts_by_parameter:
        kind.own["step"] = 0
    made.load_state_dict(optimizer.state_dict())
    for hooks in ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks"):
        getattr(made, hooks).update(getattr(optimizer, hooks))
        getattr(optimizer, hooks).clear()
    fused: Optimizer = made
    return fused


class _Translated(Optimizer):
    """Mixed into a fused optimizer: its state, in the original's layout."""

    rule: Fused
    own: Mapping[str, Any] = MappingProxyType({})
    """What the groups have besides the original's hyper-parameters."""

    def state_dict(self) -> dict[str, Any]:
        saved = super().state_dict()
        state = {key: dict(entries) for key, entries in saved["state"].items()}
        for group in saved["param_groups"]:
            if self.rule.counts_by_parameter:
                count = torch.tensor(float(group.get("step", 0)))
                for number in group["params"]:
                    if number in state:
                        state[number]["step"] = count.clone()
            for key in self.own.keys() & group.keys():
                del group[key]
        return {**saved, "state": state}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        state = {key: dict(entries) for key, entries in state_dict["state"].items()}
        groups = [dict(group) for group in state_dict["param_groups"]]
        for group in groups:
            if self.rule.counts_by_parameter:
                counts = [
                    int(state[number].pop("step"))
                    for number in group["params"]
                    if "step" in state.get(number, {})
                ]
                group["step"] = max(counts, default=0)
        super().load_state_dict({**state_dict, "state": state, "param_groups": groups})
        for entries in self.state.values():
            if self.rule.counts_by_parameter and "exp_avg" in entries:
                entries["step"] = 0  # the SDK keeps one there and never reads it

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        for group in self.param_groups:
            for key, value in self.own.items():
                group.setdefault(key, value)


def fused_clip(sdk: SDK, policy: UpdatePolicy) -> Clip | None:
    """`FusedClipNorm` for a plain L2 norm; None leaves clipping to torch."""
    options = dict(policy.grad_clip or {})
    limit = options.pop("max_norm", None)
    options.pop("foreach", None)
    if (
        float(options.pop("norm_type", 2)) != 2
        or limit is None
        or any(options.values())
    ):
        return None
    kernel: Any = None

    def clip(optimizer: Any) -> Tensor:
        nonlocal kernel
        params = [p for group in optimizer.param_groups for p in group["params"]]
        if kernel is None:
            kernel = sdk.normalization.FusedClipNorm(params, limit)
        norm: Tensor = kernel.clip_norm(params)
        return norm.reshape(())

    return clip
