"""Which hyper-parameters are baked into the executable and which can change."""

# ruff: noqa: N802 - PopTorch's names
from __future__ import annotations

from typing import Any

import torch

from poptorch._errors import Error
from poptorch._logging import logger
from poptorch._options_base import check

IGNORED = frozenset(
    {"params", "maximize", "foreach", "differentiable", "capturable", "fused"}
    | {"decoupled_weight_decay", "amsgrad"}
)
EXTRAS: dict[str, Any] = {
    "loss_scaling": 1.0,
    "max_grad_norm": None,
    "use_combined_accum": False,
    "accum_type": torch.float32,
    "velocity_accum_type": torch.float32,
    "first_order_momentum_accum_type": torch.float32,
    "second_order_momentum_accum_type": torch.float32,
    "bias_correction": True,
    "max_weight_norm": 65500.0,
    "use_tf_variant": False,
}
"""What PopTorch's optimizers have besides torch's, and its values where unset."""

_IN_GROUPS = frozenset(
    {"lr", "momentum", "dampening", "weight_decay", "nesterov", "betas", "eps"}
    | {"alpha", "centered", "velocity_scaling"}
)
_OF_OPTIMIZERS = frozenset(
    {"defaults", "state", "param_groups", "variable_attrs"}
    | {"ipu_state", "ipu_param", "has_state", *EXTRAS, "velocity_scaling"}
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
        self._variable_attributes = list(variable)
        self._allowed_attributes = list(allowed)
        self._frozen = False

    def isConstant(self, attr: str) -> bool:
        """Whether `attr` is baked into the executable."""
        return attr not in self._variable_attributes

    def markAsConstant(self, attr: str) -> None:
        """Bake `attr` into the executable; before compilation."""
        self._check(attr)
        if attr in self._variable_attributes:
            self._variable_attributes.remove(attr)

    def markAsVariable(self, attr: str) -> None:
        """Let `attr` change through `setOptimizer`; before compilation."""
        self._check(attr)
        if attr not in self._variable_attributes:
            self._variable_attributes.append(attr)

    def _check(self, attr: str) -> None:
        check(
            attr in self._allowed_attributes,
            f"Unknown attribute {attr}: not one of {sorted(self._allowed_attributes)}",
        )


def is_constant(optimizer: torch.optim.Optimizer, name: str, value: Any) -> bool:
    """Whether a hyper-parameter with this value is baked in at compilation."""
    variable = getattr(optimizer, "variable_attrs", None)
    if variable is not None:
        return bool(variable.isConstant(name))
    if name in _ALWAYS_CONSTANT:
        return True
    if name in EXTRAS:
        return False
    if name == "lr":
        return False
    default = _TORCH_DEFAULTS.get(name)
    if name == "weight_decay" and isinstance(optimizer, torch.optim.AdamW):
        default = 1e-2
    return bool(value == default)


def hyperparameters(optimizer: torch.optim.Optimizer) -> list[dict[str, Any]]:
    """The values of each parameter group, with those of the whole optimizer.

    What only PopTorch's optimizers have may be set as attributes of torch's, too.
    """
    extras = {
        name: default
        if getattr(optimizer, name, None) is None
        else getattr(optimizer, name)
        for name, default in EXTRAS.items()
    }
    return [
        {**extras, **{k: _copied(group[k]) for k in _IN_GROUPS & group.keys()}}
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
    for index, (old, names, values) in enumerate(zip(compiled, constants, new)):
        for name in sorted(names & old.keys() & values.keys()):
            if old[name] != values[name]:
                raise Error(
                    f"Optimizer attribute {name} of group {index} is a constant: it "
                    f"can't change from {old[name]} to {values[name]} after "
                    "compilation (mark it with optimizer.variable_attrs."
                    f'markAsVariable("{name}") before).'
                )


class AttributeWarnings:
    """Says once which attributes of an optimizer the device ignores."""

    def __init__(self, relaxed: bool) -> None:
        self._say = logger.debug if relaxed else logger.warning
        self._groups: set[str] = set()
        self._own: set[str] = set()
        self._kinds: set[type] = set()

    def learn(self, optimizer: torch.optim.Optimizer) -> None:
        """Attributes that are there when the model is wrapped are expected."""
        for group in optimizer.param_groups:
            self._groups.update(group)
        self._own.update(vars(optimizer))
        self._check_kind(optimizer)

    def check(self, optimizer: torch.optim.Optimizer) -> None:
        """Warn of what came later and has no meaning on the device."""
        name = type(optimizer).__name__
        self._check_kind(optimizer)
        for index, group in enumerate(optimizer.param_groups):
            extra = group.keys() - _IN_GROUPS - IGNORED - self._groups
            if extra:
                self._groups.update(extra)
                text = "Ignoring unexpected group %d attribute in %s optimizer: %s"
                self._say(text, index, name, sorted(extra))
        own = {attr for attr in vars(optimizer) if not attr.startswith("_")}
        own -= _OF_OPTIMIZERS | self._own
        if own:
            self._own.update(own)
            text = "Ignoring unexpected optimizer attribute in %s optimizer: %s"
            self._say(text, name, sorted(own))

    def _check_kind(self, optimizer: torch.optim.Optimizer) -> None:
        kind = type(optimizer)
        plain = (
            kind.__module__.startswith("torch.") or kind.__module__ == "poptorch.optim"
        )
        if not plain and kind not in self._kinds:
            self._kinds.add(kind)
            logger.warning(
                "Poptorch does not run Python optimizer code directly: of %s only the "
                "values of its attributes are used",
                kind.__name__,
            )


def log_values(family: str, optimizer: Any, groups: list[dict[str, Any]]) -> None:
    """Write the values that go to the device, by PopART's names, at level DEBUG."""
    texts = [f"useTfVariant={str(groups[0]['use_tf_variant']).lower()}"]
    first = groups[0]["first_order_momentum_accum_type"]
    if family == "SGD":
        first = groups[0]["velocity_accum_type"]
    kinds = {"accum": groups[0]["accum_type"], "firstOrderMomentumAccum": first}
    kinds["secondOrderMomentumAccum"] = groups[0]["second_order_momentum_accum_type"]
    texts += [f"{k}Type={str(v).replace('torch.', '')}" for k, v in kinds.items()]
    defaults = {**groups[0], **optimizer.defaults}
    texts += _values(optimizer, defaults, "default")
    texts.append(f"lossScaling={groups[0]['loss_scaling']:g}")
    logger.debug("Updating graph optimizer with %s, %s", family, ", ".join(texts))
    for index, group in enumerate(groups):
        shown = ", ".join(_values(optimizer, group, ""))
        logger.debug("Updating group %d optimizer with %s, %s", index, family, shown)


def _values(optimizer: Any, values: dict[str, Any], prefix: str) -> list[str]:
    texts = []
    for name in sorted(_IN_GROUPS & values.keys()):
        constant = " (const)" if is_constant(optimizer, name, values[name]) else ""
        pairs = [(name, values[name])]
        if name == "betas":
            pairs = [("beta1", values[name][0]), ("beta2", values[name][1])]
        for key, value in pairs:
            words = (prefix + "_" + ("learning_rate" if key == "lr" else key)).split(
                "_"
            )
            camel = "".join(w.capitalize() for w in words)
            texts.append(f"{camel[0].lower()}{camel[1:]}={float(value):g}{constant}")
    return texts
