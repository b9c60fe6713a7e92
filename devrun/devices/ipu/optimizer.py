"""torch's optimizer as PopTorch's: the same numbers, and state that can be fetched.

The user's object stays what it is; hooks and schedules write its `param_groups`. Its
twin from `poptorch.optim` goes to the device. State crosses by parameter: PopTorch's
`Accl1___<name>` is torch's `momentum_buffer`, and so on (`STATE_NAMES`).
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from devrun.devices.ipu.options import dtype_of
from devrun.errors import ConfigError, UnsupportedFeatureError, nearest
from devrun.step import UpdatePolicy
from devrun.torch_features import state_hooks

KINDS = ("SGD", "AdamW", "Adam", "RMSprop")
"""What an IPU can run of torch; AdamW first, as it became a subclass of Adam."""

STATE_NAMES = {
    "SGD": {"momentum_buffer": "Accl1"},
    "Adam": {"exp_avg": "Accl1", "exp_avg_sq": "Accl2", "step": "Step"},
    "RMSprop": {
        "square_avg": "Accl1",
        "momentum_buffer": "Accl2",
        "grad_avg": "Accl3",
        "step": "Step",
    },
}
"""torch's name for each state tensor -> PopTorch's prefix."""

_NUMBERS = {
    "SGD": ("lr", "momentum", "dampening", "weight_decay", "nesterov"),
    "Adam": ("lr", "betas", "eps", "weight_decay"),
    "AdamW": ("lr", "betas", "eps", "weight_decay"),
    "RMSprop": ("lr", "alpha", "eps", "weight_decay", "momentum", "centered"),
}
POLICY_KEYS = ("accum_type", "velocity_accum_type")
"""What `fp16` and `optimizer_config.options` may say about an IPU."""
_CLIPS = ("SGD", "Adam", "AdamW")


class DeviceOptimizer:
    """The twin of `optimizer` and its state on the device.

    Args:
        sdk: PopTorch.
        optimizer: the user's, over parameters of `module`.
        module: what PopTorch wraps; its parameter names are those of the state.

    Raises:
        UnsupportedFeatureError: an optimizer, or a setting of it, an IPU cannot run.
    """

    def __init__(
        self, sdk: Any, optimizer: Any, module: nn.Module, policy: UpdatePolicy
    ) -> None:
        self.host = optimizer
        self.kind = kind = _kind_of(optimizer)
        self._names = {id(p): name for name, p in module.named_parameters()}
        extras = _policy_extras(kind, policy)
        values = self._values()
        plain = kind == "SGD" and not any(group["momentum"] for group in values)
        # PopTorch lets those numbers change later that are arguments, and keeps a
        # tensor of each weight's size for a momentum that may change
        first = {k: v for k, v in values[0].items() if k != "momentum" or not plain}
        groups = [
            {"params": list(group["params"]), **{k: now[k] for k in first}}
            for group, now in zip(optimizer.param_groups, values)
        ]
        self.twin: Any = getattr(sdk.optim, kind)(groups, **first, **extras)
        self._sent: list[dict[str, Any]] = values
        self._scalars: dict[str, float] = {}
        self._newer_on_device = False
        self._newer_on_host = bool(optimizer.state)
        self._handles = state_hooks(
            optimizer, lambda _: self.download(), self._after_load
        )

    def changed(self) -> bool:
        """Copy changed hyper-parameters to the twin; whether there were any."""
        now = self._values()
        if now == self._sent:
            return False
        for group, values in zip(self.twin.param_groups, now):
            group.update(values)
        self._sent = now
        return True

    def ran(self) -> None:
        """The device updated the weights: its state is the newer one."""
        self._newer_on_device = True

    def upload(self) -> None:
        """Give the twin the host's state, if that is newer."""
        if not self._newer_on_host:
            return
        self._newer_on_host = self._newer_on_device = False
        state = {name: torch.tensor(value) for name, value in self._scalars.items()}
        for param, _ in self._params():
            own = self.host.state.get(param, {})
            for key, prefix in self._state_names.items():
                if isinstance(own.get(key), Tensor):
                    name = f"{prefix}___{self._names[id(param)]}"
                    state[name] = own[key].detach().clone()
        whole = self.twin.state_dict()
        # the hyper-parameters are those of the host, not the device's float32 of them
        whole.update(ipu_state=state, ipu_param={})
        self.twin.load_state_dict(whole)

    def download(self) -> None:
        """Give the user's optimizer the device's state, if that is newer."""
        if not self._newer_on_device:
            return
        self._newer_on_device = False
        found = dict(self.twin.state_dict().get("ipu_state") or {})
        for param, group in self._params():
            own: dict[str, Any] = {}
            for key, prefix in self._state_names.items():
                value = found.pop(f"{prefix}___{self._names[id(param)]}", None)
                if value is not None and _kept(key, group):
                    shape = () if key == "step" else param.shape
                    own[key] = value.detach().reshape(shape).clone()
            if own:
                self.host.state[param] = {**self.host.state.get(param, {}), **own}
        self._scalars = {
            name: float(value)
            for name, value in found.items()
            if isinstance(value, Tensor) and value.numel() == 1
        }

    def detach(self) -> None:
        """Fetch the state, to be sent again before the next update."""
        self.download()
        self._newer_on_host = True

    def scalars(self) -> dict[str, float]:
        """State that belongs to no parameter, such as an automatic loss scale."""
        self.download()
        return dict(self._scalars)

    def load_scalars(self, scalars: Mapping[str, float]) -> None:
        """Take back what `scalars` gave; sent before the next update."""
        self.download()
        self._scalars = dict(scalars)
        self._newer_on_host = self._newer_on_host or bool(scalars)

    def close(self) -> None:
        """Fetch the state and leave the user's optimizer alone."""
        self.download()
        for handle in self._handles:
            handle.remove()
        self._handles = []

    @property
    def _state_names(self) -> Mapping[str, str]:
        return STATE_NAMES.get(self.kind, STATE_NAMES["Adam"])

    def _params(self) -> Iterator[tuple[nn.Parameter, Mapping[str, Any]]]:
        for group in self.host.param_groups:
            for param in group["params"]:
                if id(param) in self._names:
                    yield param, group

    def _values(self) -> list[dict[str, Any]]:
        return [
            {name: _plain(group[name]) for name in _NUMBERS[self.kind]}
            for group in self.host.param_groups
        ]

    def _after_load(self, _: Any) -> None:
        self._newer_on_host, self._newer_on_device = True, False


def _kept(key: str, group: Mapping[str, Any]) -> bool:
    """Whether torch's own optimizer would have this state."""
    needs = {"momentum_buffer": "momentum", "grad_avg": "centered"}.get(key)
    return needs is None or bool(group.get(needs))


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, Tensor) else value


def _kind_of(optimizer: Any) -> str:
    """Which of `KINDS` an optimizer is."""
    kind = type(optimizer)
    bases = {base: getattr(torch.optim, base) for base in KINDS}
    name = next((n for n, base in bases.items() if issubclass(kind, base)), None)
    # its settings beyond torch's would be lost
    vendors = kind.__module__.startswith("poptorch")
    # torch wraps `step`, once in each class
    own = name and inspect.unwrap(kind.step) is not inspect.unwrap(bases[name].step)
    if name is None or own or vendors:
        raise _refused(
            "optimizer",
            f"optimizer {kind.__module__}.{kind.__name__} cannot run on an IPU, which "
            f"updates the weights itself: take {', '.join(KINDS)} of torch.optim",
        )
    for group in optimizer.param_groups:
        if name == "Adam" and group.get("decoupled_weight_decay"):
            name = "AdamW"
        for flag in ("amsgrad", "maximize"):
            if group.get(flag):
                raise _refused(
                    "optimizer",
                    f"optimizer {kind.__name__} with {flag}=True cannot run on an IPU: "
                    "remove it",
                )
        if group.get("centered") != optimizer.param_groups[0].get("centered"):
            raise _refused(
                "optimizer",
                "optimizer RMSprop: on an IPU all parameter groups have the same "
                "`centered`",
            )
    return name


def _refused(key: str, reason: str) -> UnsupportedFeatureError:
    return UnsupportedFeatureError(reason, key=key)


def check_policy(policy: UpdatePolicy, optimizer: Any) -> None:
    """Refuse an update that an IPU cannot make.

    Raises:
        UnsupportedFeatureError: naming the part of the policy.
    """
    if policy.precision not in ("fp32", "fp16"):
        raise _refused(
            "precision",
            f"precision {policy.precision!r} is not one of an IPU: use fp32 or fp16",
        )
    if isinstance(optimizer, Mapping):
        raise _refused(
            "optimizer",
            f"several optimizers ({', '.join(map(str, optimizer))}) cannot run on an "
            "IPU: use one, with parameter groups",
        )
    if policy.owner in ("hook", "model"):
        who = "an optimizer hook" if policy.owner == "hook" else "the model"
        raise _refused(
            "optimizer_config",
            f"{who} cannot update the weights on an IPU, which does it in the compiled "
            "graph: describe the update in optimizer_config",
        )
    if policy.micro_batch is not None:
        raise _refused(
            "micro_batch",
            "micro_batch is not possible on an IPU, where a graph has one batch size: "
            "set samples_per_gpu to the micro-batch, and cumulative_iters",
        )
    if policy.nonfinite == "skip":
        raise _refused(
            "nonfinite",
            "nonfinite 'skip' is not possible on an IPU, where the update is done when "
            "the loss comes back: use 'stop', 'warn' or 'ignore'",
        )
    if policy.detect_anomalous_params:
        raise _refused(
            "detect_anomalous_params",
            "detect_anomalous_params needs gradients on the host, which an IPU does "
            "not give: run a few iterations with --device cpu for it",
        )


def _policy_extras(kind: str, policy: UpdatePolicy) -> dict[str, Any]:
    """Loss scale, accumulator types and clipping, as arguments of the twin.

    Raises:
        UnsupportedFeatureError, ConfigError: naming what an IPU cannot do.
    """
    extras: dict[str, Any] = {}
    velocity = "velocity" if kind == "SGD" else "first_order_momentum"
    names = dict(zip(POLICY_KEYS, ("accum_type", f"{velocity}_accum_type")))
    for key, value in policy.options.items():
        if key not in names:
            raise ConfigError(
                f"optimizer_config: {key!r} means nothing on device 'ipu'; "
                f"{nearest(str(key), names)}",
                key=str(key),
            )
        if value is not None:
            extras[names[key]] = dtype_of(key, value)
    if policy.precision == "fp16" and policy.loss_scale != "dynamic":
        if not isinstance(policy.loss_scale, (int, float)):
            raise _refused(
                "loss_scale",
                "loss_scale on an IPU is a number, or 'dynamic' for its automatic "
                f"loss scaling, got {policy.loss_scale!r}",
            )
        extras["loss_scaling"] = float(policy.loss_scale)
    return {**extras, **_clipping(kind, policy.grad_clip)}


def _clipping(kind: str, grad_clip: Mapping[str, Any] | None) -> dict[str, float]:
    if grad_clip is None:
        return {}
    norm = float(grad_clip.get("max_norm", math.inf))
    if not math.isfinite(norm) or float(grad_clip.get("norm_type", 2.0)) != 2.0:
        raise _refused(
            "grad_clip",
            f"grad_clip {dict(grad_clip)!r} cannot run on an IPU, which clips by the "
            "2-norm to a finite max_norm: give max_norm alone",
        )
    if kind not in _CLIPS:
        raise _refused(
            "grad_clip",
            f"grad_clip cannot be combined with {kind} on an IPU, where "
            f"{', '.join(_CLIPS)} clip: take one of these, or remove grad_clip",
        )
    return {"max_grad_norm": norm}
