"""torch's optimizers become the SDK's fused ones where the numbers stay the same.

A converted optimizer has the groups, hyper-parameters and hooks of the one it stands
for. It also has its class name and its layout of `state_dict`, so that a checkpoint
does not tell on which device it was written.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from devrun.devices.hpu.sdk import SDK

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
    "Lamb": Fused(
        "FusedLamb",
        (*_ADAM_KEYS, "bias_correction", "grad_averaging", "max_grad_norm"),
        {"trust_clip": False, "caution": False, "decoupled_decay": False}
        | {"corrected_weight_decay": False, "always_adapt": False},
    ),
}
"""By class name: torch's own, and the LAMB of timm."""

_NO_EQUAL = {
    "Adagrad": "the fused one fixes its learning rate when it is built",
    "Lars": "the fused one has the learning rate inside its momentum",
    "LARS": "the fused one has the learning rate inside its momentum",
}


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
    ours = kind is getattr(torch.optim, kind.__name__, None) or (
        kind.__module__.startswith("timm.")
    )
    if rule is None or not ours:
        why = _NO_EQUAL.get(kind.__name__, "no fused optimizer does the same")
        return why
    if not hasattr(sdk.optimizers, rule.name):
        return f"this SDK has no {rule.name}"
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
    fused_step: Any = base.step
    while getattr(fused_step, "hooked", False):  # hooks run around our own step
        fused_step = fused_step.__wrapped__
    parts = {"rule": rule, "plain": optimizer, "fused_step": fused_step}
    kind: Any = type(type(optimizer).__name__, (_Translated, base), parts)
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
    plain: Optimizer
    """The original, of the same groups and state: it does sparse updates."""
    fused_step: Callable[..., Any]
    _logged = False

    def step(self, closure: Any = None) -> Any:
        """One update, by the original where a gradient is sparse."""
        if not any(
            param.grad is not None and param.grad.layout is not torch.strided
            for group in self.param_groups
            for param in group["params"]
        ):
            return self.fused_step(closure)
        if not self._logged:
            self._logged = True
            logger.warning(
                "hpu: optimizer %s runs as torch's where gradients are sparse, which "
                "%s does not take: leave sparse=True out of nn.Embedding",
                type(self).__name__,
                self.rule.name,
            )
        return self.plain.step(closure)

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
        self.plain.param_groups, self.plain.state = self.param_groups, self.state
