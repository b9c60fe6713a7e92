"""Plain data passed between the runner, the hooks and the device adapters."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

__all__ = ["Capability", "MicroBatches", "StepOutput", "UpdatePolicy"]


class Capability(enum.Enum):
    """What a device adapter can do; hooks name what they need in `requires`."""

    GRAD_ACCESS = "hooks can read and change gradients (after_backward)"
    HOOK_UPDATE = "a user's own optimizer hook or model may do the update"
    HOST_WEIGHTS = "host reads and writes of weights act on the device at once"
    SEVERAL_OPTIMIZERS = "a dict of optimizers"
    DYNAMIC_SHAPES = "batches of changing shape run without recompilation"
    DISTRIBUTED = "one process per device with collectives"
    CLIP_VALUE = "gradients can be clipped by value, not only by norm"
    GRAD_NORM = "the norm before clipping is reported, as grad_norm"
    FINITE_CHECKS = "losses are checked for NaN and infinity"


class StepOutput(dict[str, Any]):
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


class MicroBatches(list[Any]):
    """The batches of one optimizer update, when gradients are accumulated."""


@dataclass(frozen=True)
class UpdatePolicy:
    """How one optimizer update is done: `optimizer_config` and `fp16` as data.

    Each adapter executes it, translates it to its SDK, or refuses it by name
    before the first step.
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
    loss_scale: float | str | Mapping[str, Any] = "dynamic"
    """fp16 only: a fixed factor, `dynamic`, or arguments of `torch.amp.GradScaler`."""
    nonfinite: str = "stop"
    """On a NaN or infinite loss: `stop`, `skip` the update, `warn`, `ignore`, or
    `rollback`: back to the last checkpoint, past the data read since."""
    spike: Mapping[str, Any] | None = None
    """On a loss far above those before it: `action`, one of the same but `ignore`, and
    maybe `window`, `threshold` and `least`."""
    max_rollbacks: int = 3
    """How often a run may go back before it stops."""
    micro_batch: int | str | None = None
    """Samples of a micro-batch at most, `auto` for as many as memory has room for;
    None takes batches as they come."""
    mean_over: str = "targets"
    """What the loss of several micro-batches, ranks or evaluation batches is the mean
    over: `targets` that are valid, where they are class numbers, or `samples`."""
    detect_anomalous_params: bool = False
    """Log the parameters that the loss does not reach."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """What only some devices understand, such as `accum_type` on an IPU."""
