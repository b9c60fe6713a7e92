"""Plain data passed between the runner, the hooks and the device adapters."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from devrun.config.numbers import check_finite, is_finite, is_number, whole_number
from devrun.config.origin import describe
from devrun.config.schema import GRAD_CLIP
from devrun.errors import ConfigError, ConfigTypeError, nearest

OWNERS = ("auto", "adapter", "hook", "model")
PRECISIONS = ("fp32", "bf16", "fp16", "fp8")
NONFINITE = ("stop", "skip", "warn", "ignore")
MEAN_OVER = ("targets", "labels", "samples")


class Capability(enum.Enum):
    """What a device adapter can do; hooks name what they need in `requires`."""

    GRAD_ACCESS = "hooks can read and change gradients (after_backward)"
    HOOK_UPDATE = "a user's own optimizer hook or model may do the update"
    HOST_WEIGHTS = "host reads and writes of weights act on the device at once"
    DYNAMIC_SHAPES = "batches of changing shape run without recompilation"
    CLIP_VALUE = "gradients can be clipped by value, not only by norm"
    GRAD_NORM = "the norm before clipping is reported, as grad_norm"
    RECOMPUTATION = "activations can be computed again (gradient_checkpointing)"
    FINITE_CHECKS = "losses are checked for NaN and infinity"


class StepOutput(dict):
    """What one step returned: MMCV's dict with its three keys as attributes.

    Keys: `loss` (0-d tensor, detached, or None), `log_vars` (name -> number or 0-d
    tensor, still on the device: taking a float would make the host wait),
    `num_samples` (int), `num_items` where the loss is a mean over something else (0-d
    tensor: how many), and whatever else the model returned, such as
    `predictions` and `targets` from an evaluation step.
    """

    __slots__ = ()  # one is made in each iteration

    @property
    def loss(self) -> Any:
        return self["loss"]

    @property
    def log_vars(self) -> dict[str, Any]:
        log_vars: dict[str, Any] = self["log_vars"]
        return log_vars

    @property
    def num_samples(self) -> int:
        count: int = self["num_samples"]
        return count


class MicroBatches(list):
    """The batches of one optimizer update, when gradients are accumulated."""


@dataclass(frozen=True)
class UpdatePolicy:
    """How one optimizer update is done: `optimizer_config` and `fp16` as data.

    Each adapter executes it, translates it to its SDK, or refuses it by name
    before the first step. What no device could do is refused here.

    Raises:
        ConfigError: a value that `optimizer_config` does not take.
    """

    owner: str = "auto"
    """Who updates: `adapter`, `hook` (a user's OptimizerHook subclass), `model`
    (train_step steps the optimizers itself), or `auto`: the adapter, unless the
    first step shows that the model did it."""
    grad_clip: Mapping[str, Any] | None = None
    """Arguments of `clip_grad_norm_` (`max_norm`, `norm_type`), or `clip_value`."""
    accumulate: int = 1
    """Batches per update; MMCV calls it `cumulative_iters`."""
    precision: str = "fp32"
    """`fp32`, `bf16` or `fp16`; the latter two run the forward pass in autocast."""
    precision_open: bool = True
    """Whether nobody asked for that precision, so that `performance` may choose one."""
    loss_scale: float | str | Mapping[str, Any] = "dynamic"
    """fp16 only: a fixed factor, `dynamic`, or arguments of `torch.amp.GradScaler`."""
    nonfinite: str = "stop"
    """On a NaN or infinite loss: `stop`, `skip` the update, `warn` or `ignore`."""
    micro_batch: int | str | None = None
    """Samples of a micro-batch at most, `auto` for what memory has room for; None
    takes batches as they come."""
    mean_over: str = "targets"
    """What the loss of several micro-batches, ranks or evaluation batches is the mean
    over: `targets` that are valid, where they are class numbers, `labels` (with those
    that a causal model shifts out), or `samples`."""
    detect_anomalous_params: bool = False
    """Log the parameters that the loss does not reach."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """What only some devices understand, such as `accum_type` on an IPU."""

    def __post_init__(self) -> None:
        if self.precision != "fp32":
            object.__setattr__(self, "precision_open", False)
        _one_of("update owner", self.owner, OWNERS)
        _one_of("mean_over", self.mean_over, MEAN_OVER)
        _one_of("precision", self.precision, PRECISIONS)
        _one_of("nonfinite", self.nonfinite, NONFINITE)
        whole_number("cumulative_iters", self.accumulate)
        if self.micro_batch not in (None, "auto"):
            whole_number("micro_batch", self.micro_batch)
        made = {
            "grad_clip": _checked_clip(self.grad_clip),
            "loss_scale": _checked_scale(self.loss_scale),
            "options": dict(self.options or {}),
        }
        for name, value in made.items():
            object.__setattr__(self, name, value)

    @property
    def scaler_arguments(self) -> dict[str, Any]:
        """Those of the `torch.amp.GradScaler` that `loss_scale` asks for."""
        if isinstance(self.loss_scale, Mapping):
            return dict(self.loss_scale)
        return {} if self.fixed_scale is None else {"init_scale": self.fixed_scale}

    @property
    def fixed_scale(self) -> float | None:
        """The factor that the scaler keeps; None where it searches one."""
        return self.loss_scale if isinstance(self.loss_scale, float) else None


def _one_of(
    name: str, value: Any, accepted: tuple[str, ...], key: str | None = None
) -> None:
    if value not in accepted:
        near = nearest(str(value), accepted)
        hint = f"; {near}" if near.startswith("did you mean") else ""
        raise ConfigError(
            f"{name} must be one of {', '.join(accepted)}, got {value!r}{hint}",
            key=key or name,
        )


def _checked_clip(grad_clip: Any) -> dict[str, Any] | None:
    if grad_clip is None:
        return None
    if not isinstance(grad_clip, Mapping):
        raise ConfigTypeError.of(
            "grad_clip", f"must be a dict such as dict(max_norm=1.0), got {grad_clip!r}"
        )
    by_value = "clip_value" in grad_clip
    accepted = {"clip_value", "foreach"} if by_value else GRAD_CLIP - {"clip_value"}
    if set(grad_clip) - accepted or not (by_value or "max_norm" in grad_clip):
        raise ConfigError.of(
            "grad_clip",
            f"takes either max_norm or clip_value, here {sorted(accepted)}; got "
            f"{sorted(grad_clip)}",
        )
    for name in ("max_norm", "clip_value", "norm_type"):
        value = grad_clip.get(name, 1.0)
        text = name == "norm_type" and isinstance(value, str)
        if not text and not (is_number(value) and value > 0):  # which nan is not
            raise ConfigError(
                f"grad_clip: {name} must be a number above 0, got {describe(value)}",
                key="grad_clip",
            )
    return dict(grad_clip)


def _checked_scale(scale: Any) -> float | str | dict[str, Any]:
    if is_finite(scale) and scale > 0:
        return float(scale)
    if isinstance(scale, Mapping):
        check_finite(scale, ("loss_scale",))
        return dict(scale)
    if scale == "dynamic":
        return "dynamic"
    raise ConfigError.of(
        "loss_scale",
        "must be a number above 0, 'dynamic' or a dict of GradScaler "
        f"arguments, got {scale!r}",
    )
