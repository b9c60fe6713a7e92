"""PopTorch's optimizers: torch's own, with what only the device has.

`step()` on the host is torch's (LAMB: written here). On the device the hyper-parameters
alone are used; see `_device_optimizer`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from poptorch._logging import logger
from poptorch._optimizer_attributes import EXTRAS, VariableAttributes
from poptorch._options_base import check

_KINDS = (torch.float16, torch.float32)


class Optimizer:
    """What PopTorch's optimizers have in common: state that lives on the device."""

    variable_attrs: VariableAttributes

    _own: tuple[str, ...]
    """torch's hyper-parameters; the other arguments of torch's are ignored."""
    _extra: tuple[str, ...]
    """Those that only the device has."""

    def _begin(
        self,
        base: Any,
        params: Iterable[Any],
        arguments: dict[str, Any],
        **defaults: Any,
    ) -> None:
        """Make torch's part; record explicit arguments as variable, extra ones here.

        Raises:
            AssertionError: An accumulator type other than float16 or float32.
        """
        given = {name: arguments[name] for name in self._own}
        extras = {name: arguments[name] for name in self._extra}
        explicit = [k for k, v in {**given, **extras}.items() if v is not None]
        passed = {k: given[k] for k in given if k in explicit}
        base.__init__(self, params, **{**defaults, **passed})
        for name, value in extras.items():
            if name.endswith("accum_type"):
                check(
                    value is None or value in _KINDS,
                    f"{name} must be torch.float32 or torch.float16, not {value}",
                )
        self.variable_attrs = VariableAttributes(explicit, [*given, *extras])
        for name, value in extras.items():
            object.__setattr__(self, name, EXTRAS[name] if value is None else value)
        self._state_dict: dict[str, Any] = {}
        self._executor: Any = None
        self.ipu_state: dict[str, Any] | None = None
        self.ipu_param: dict[str, Any] | None = None
        self.has_state = False

    def state_dict(self) -> dict[str, Any]:
        """torch's dictionary with `ipu_state` and `ipu_param`, read from the device."""
        if self._executor is not None:
            self._executor._read_optimizer_state(self)
        plain = super().state_dict()  # type: ignore[misc]
        return {**plain, "ipu_state": self.ipu_state, "ipu_param": self.ipu_param}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over device state; it is uploaded before the next run.

        Raises:
            RuntimeError: A dictionary without device state.
        """
        if not ("ipu_state" in state_dict and "ipu_param" in state_dict):
            raise RuntimeError("Only IPU optimizer states can be loaded onto the IPU.")
        plain = {k: v for k, v in state_dict.items() if not k.startswith("ipu_")}
        if plain.get("param_groups"):
            super().load_state_dict(plain)  # type: ignore[misc]
        if state_dict["ipu_state"] is not None or state_dict["ipu_param"] is not None:
            self.ipu_state = dict(state_dict["ipu_state"] or {})
            self.ipu_param = dict(state_dict["ipu_param"] or {})
            self.has_state = True
        if self._executor is not None:
            self._executor._optimizer_state_loaded(self)

    def __getstate__(self) -> dict[str, Any]:
        state = dict(super().__getstate__())  # type: ignore[misc]
        names = ("variable_attrs", "ipu_state", "ipu_param", "has_state")
        state.update({name: self.__dict__[name] for name in names})
        state.update({name: self.__dict__[name] for name in self._extra})
        state.update(_state_dict={}, _executor=None)
        return state


_MOMENTS = ("first_order_momentum_accum_type", "second_order_momentum_accum_type")


class SGD(Optimizer, torch.optim.SGD):
    """torch's SGD; `use_combined_accum` keeps one accumulator for gradient and
    momentum."""

    _own = ("lr", "momentum", "dampening", "weight_decay", "nesterov")
    _extra = (
        *("loss_scaling", "use_combined_accum", "accum_type", "velocity_accum_type"),
        "max_grad_norm",
    )

    def __init__(
        self,
        params: Iterable[Any],
        lr: float | None = None,
        momentum: float | None = None,
        dampening: float | None = None,
        weight_decay: float | None = None,
        nesterov: bool | None = None,
        maximize: bool | None = None,
        foreach: bool | None = None,
        differentiable: bool | None = None,
        loss_scaling: float | None = None,
        velocity_scaling: float | None = None,
        use_combined_accum: bool | None = None,
        accum_type: torch.dtype | None = None,
        velocity_accum_type: torch.dtype | None = None,
        max_grad_norm: float | None = None,
    ) -> None:
        use_combined_accum = bool(use_combined_accum)
        self._begin(torch.optim.SGD, params, locals(), lr=1e-3)
        if velocity_scaling is not None and not use_combined_accum:
            logger.warning("velocity_scaling is ignored without use_combined_accum")
        if use_combined_accum:
            scaling = 1.0 if velocity_scaling is None else velocity_scaling
            self.velocity_scaling = self.defaults["velocity_scaling"] = scaling
            for group in self.param_groups:
                group.setdefault("velocity_scaling", scaling)
            self.variable_attrs._allowed_attributes.append("velocity_scaling")
            if velocity_scaling is not None:
                self.variable_attrs.markAsVariable("velocity_scaling")


class Adam(Optimizer, torch.optim.Adam):
    """torch's Adam."""

    _own = ("lr", "betas", "eps", "weight_decay", "amsgrad")
    _extra = ("loss_scaling", "accum_type", *_MOMENTS, "max_grad_norm")

    def __init__(
        self,
        params: Iterable[Any],
        lr: float | None = None,
        betas: tuple[float, float] | None = None,
        eps: float | None = None,
        weight_decay: float | None = None,
        amsgrad: bool | None = None,
        foreach: bool | None = None,
        maximize: bool | None = None,
        capturable: bool | None = None,
        differentiable: bool | None = None,
        fused: bool | None = None,
        loss_scaling: float | None = None,
        accum_type: torch.dtype | None = None,
        first_order_momentum_accum_type: torch.dtype | None = None,
        second_order_momentum_accum_type: torch.dtype | None = None,
        max_grad_norm: float | None = None,
    ) -> None:
        self._begin(torch.optim.Adam, params, locals())


class AdamW(Optimizer, torch.optim.AdamW):
    """torch's AdamW; `bias_correction=False` has no effect, as in PopTorch 3.4."""

    _own = Adam._own
    _extra = ("bias_correction", *Adam._extra)

    def __init__(
        self,
        params: Iterable[Any],
        lr: float | None = None,
        betas: tuple[float, float] | None = None,
        eps: float | None = None,
        weight_decay: float | None = None,
        amsgrad: bool | None = None,
        maximize: bool | None = None,
        foreach: bool | None = None,
        capturable: bool | None = None,
        differentiable: bool | None = None,
        fused: bool | None = None,
        loss_scaling: float | None = None,
        bias_correction: bool | None = True,
        accum_type: torch.dtype | None = None,
        first_order_momentum_accum_type: torch.dtype | None = None,
        second_order_momentum_accum_type: torch.dtype | None = None,
        max_grad_norm: float | None = None,
    ) -> None:
        self._begin(torch.optim.AdamW, params, locals())


class RMSprop(Optimizer, torch.optim.RMSprop):
    """torch's RMSprop, or with `use_tf_variant` TensorFlow's."""

    _own = ("lr", "alpha", "eps", "weight_decay", "momentum", "centered")
    _extra = ("loss_scaling", "accum_type", *_MOMENTS, "use_tf_variant")

    def __init__(
        self,
        params: Iterable[Any],
        lr: float | None = None,
        alpha: float | None = None,
        eps: float | None = None,
        weight_decay: float | None = None,
        momentum: float | None = None,
        centered: bool | None = None,
        foreach: bool | None = None,
        maximize: bool | None = None,
        differentiable: bool | None = None,
        loss_scaling: float | None = None,
        accum_type: torch.dtype | None = None,
        first_order_momentum_accum_type: torch.dtype | None = None,
        second_order_momentum_accum_type: torch.dtype | None = None,
        use_tf_variant: bool | None = None,
    ) -> None:
        use_tf_variant = bool(use_tf_variant)
        self._begin(torch.optim.RMSprop, params, locals())


class _WithDefaults(torch.optim.Optimizer):
    """torch's base class, its defaults as keywords."""

    def __init__(self, params: Iterable[Any], **defaults: Any) -> None:
        torch.optim.Optimizer.__init__(self, params, defaults)


class LAMB(Optimizer, _WithDefaults):
    """Layer-wise adaptive moments (You et al., 2020, algorithm 2)."""

    _own = ("lr", "betas", "eps", "weight_decay")
    _extra = (
        *("bias_correction", "loss_scaling", "max_weight_norm", "accum_type"),
        *_MOMENTS,
    )
    bias_correction: bool
    max_weight_norm: float

    def __init__(
        self,
        params: Iterable[Any],
        lr: float | None = None,
        betas: tuple[float, float] | None = None,
        eps: float | None = None,
        weight_decay: float | None = None,
        bias_correction: bool | None = True,
        loss_scaling: float | None = None,
        max_weight_norm: float | None = None,
        accum_type: torch.dtype | None = None,
        first_order_momentum_accum_type: torch.dtype | None = None,
        second_order_momentum_accum_type: torch.dtype | None = None,
    ) -> None:
        defaults = {"lr": 1e-3, "betas": (0.9, 0.999), "eps": 1e-8}
        self._begin(_WithDefaults, params, locals(), **defaults, weight_decay=1e-2)

    def step(self, closure: Any = None) -> Any:
        """One update on the host."""
        from poptorch._update_rules import lamb_update

        loss = closure() if closure is not None else None
        own: dict[str, Any] = {"bias_correction": self.bias_correction}
        own["max_weight_norm"] = self.max_weight_norm
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is not None:
                    state = self.state[weight]
                    if not state:
                        zeros = torch.zeros_like(weight, dtype=torch.float32)
                        state.update(step=torch.zeros(()), exp_avg=zeros)
                        state["exp_avg_sq"] = zeros.clone()
                    lamb_update(weight, weight.grad, state, {**group, **own})
        return loss
