"""Which hyper-parameters are baked into the executable and which can change."""

# ruff: noqa: N802 - PopTorch's names
from __future__ import annotations

from typing import Any

import torch

from poptorch._logging import logger
from poptorch._options_base import check
from poptorch.poptorch_core import Error

IGNORED = frozenset(
    {"params", "maximize", "foreach", "differentiable", "capturable", "fused"}
    | {"decoupled_weight_decay", "amsgrad"}
)
_TORCH_DEFAULTS: dict[str, Any] = {
    "momentum": 0,
    "dampening": 0,
    "weight_decay": 0,
    "eps": 1e-8,
}
_ALWAYS_CONSTANT = frozenset({"alpha", "nesterov", "betas", "centered", "params"})


class VariableAttributes:
    """The variable hyper-parameters of a `poptorch.optim` optimizer."""

    def __init__(self, variable: list[str], allowed: list[str]) -> None:
        self._variable = set(variable)
        self._allowed = list(allowed)
        self._frozen = False

    def isConstant(self, attr: str) -> bool:
        """Whether `attr` is baked into the executable."""
        return attr not in self._variable

    def markAsConstant(self, attr: str) -> None:
        """Bake `attr` into the executable; before compilation."""
        self._check(attr)
        self._variable.discard(attr)

    def markAsVariable(self, attr: str) -> None:
        """Let `attr` change through `setOptimizer`; before compilation."""
        self._check(attr)
        self._variable.add(attr)

    def _check(self, attr: str) -> None:
        check(
            attr in self._allowed,
            f"Unknown attribute {attr}: the optimizer has {sorted(self._allowed)}",
        )


def is_constant(optimizer: torch.optim.Optimizer, name: str, value: Any) -> bool:
    """Whether a hyper-parameter with this value is baked in at compilation."""
    variable = getattr(optimizer, "variable_attrs", None)
    if variable is not None:
        return bool(variable.isConstant(name))
    if name in _ALWAYS_CONSTANT:
        return True
    if name == "lr":
        return False
    default = _TORCH_DEFAULTS.get(name)
    if name == "weight_decay" and isinstance(optimizer, torch.optim.AdamW):
        default = 1e-2
    return bool(value == default)


def hyperparameters(optimizer: torch.optim.Optimizer) -> list[dict[str, Any]]:
    """The values of each parameter group, without the parameters."""
    return [
        {k: _copied(v) for k, v in group.items() if k not in IGNORED}
        for group in optimizer.param_groups
    ]


def _copied(value: Any) -> Any:
    return float(value) if isinstance(value, torch.Tensor) else value


def check_constants(
    compiled: list[dict[str, Any]],
    constants: list[set[str]],
    new: list[dict[str, Any]],
) -> None:
    """Refuse a new value of a hyper-parameter that was baked in.

    Raises:
        Error: Naming the attribute, both values and the remedy.
    """
    if len(compiled) != len(new):
        raise Error(
            f"The number of parameter groups changed from {len(compiled)} to {len(new)}"
        )
    for index, (old, names, values) in enumerate(
        zip(compiled, constants, new, strict=True)
    ):
        for name in sorted(names & old.keys() & values.keys()):
            if old[name] != values[name]:
                raise Error(
                    f"Optimizer attribute {name} of group {index} is a constant: it "
                    f"can't change from {old[name]} to {values[name]} after "
                    "compilation (mark it with optimizer.variable_attrs."
                    f'markAsVariable("{name}") before).'
                )


_EXPECTED = frozenset(
    {"lr", "momentum", "dampening", "weight_decay", "nesterov", "betas", "eps"}
    | {"alpha", "centered", "initial_momentum", "param_names", "bias_correction"}
    | {"loss_scaling", "velocity_scaling", "use_combined_accum", "accum_type"}
    | {"velocity_accum_type", "max_grad_norm", "first_order_momentum_accum_type"}
    | {"second_order_momentum_accum_type", "use_tf_variant", "max_weight_norm"}
)


class AttributeWarnings:
    """Says once which attributes of an optimizer the device ignores."""

    def __init__(self, relaxed: bool) -> None:
        self._say = logger.debug if relaxed else logger.warning
        self._seen: set[str] = set()

    def learn(self, optimizer: torch.optim.Optimizer) -> None:
        """Attributes that are there when the model is wrapped are expected."""
        for group in optimizer.param_groups:
            self._seen.update(group)

    def check(self, optimizer: torch.optim.Optimizer) -> None:
        """Warn of what came later and has no meaning on the device."""
        for index, group in enumerate(optimizer.param_groups):
            extra = group.keys() - _EXPECTED - IGNORED - self._seen
            if extra:
                self._seen.update(extra)
                self._say(
                    "Ignoring unexpected group %d attribute in %s optimizer: %s",
                    index,
                    type(optimizer).__name__,
                    sorted(extra),
                )
