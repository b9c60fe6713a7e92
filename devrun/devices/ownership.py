"""Who does the update: the adapter, or the model's own `train_step`."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from torch import nn
from torch.optim import Optimizer

from devrun.dist import allreduce_grads, get_dist_info
from devrun.errors import ConfigError, UnsupportedFeatureError
from devrun.models.step_module import StepModule
from devrun.parallel.strategy import optimizers_in
from devrun.step import UpdatePolicy

logger = logging.getLogger("devrun")


class UpdateWatch:
    """Sees, while it is entered, whether the model did the update itself.

    True in `seen` when an optimizer stepped, or when gradients appeared: a model that
    accumulates them itself may step only in a later iteration.
    """

    def __init__(self, model: nn.Module, optimizer: Any, divided: bool = False) -> None:
        self.seen = False
        self._divided = divided
        self._params = [p for p in model.parameters() if p.requires_grad]
        self._optimizers = optimizers_in(optimizer)
        self._handles: list[Any] = []
        self._had_gradient: list[bool] = []

    def __enter__(self) -> UpdateWatch:
        def stepped(*_: Any) -> None:
            self.seen = True

        self._had_gradient = [param.grad is not None for param in self._params]
        self._handles = [o.register_step_post_hook(stepped) for o in self._optimizers]
        if self._divided:
            own = [o.register_step_pre_hook(_refuse) for o in self._optimizers]
            self._handles += own
        else:
            self._handles += average_before_steps(self._optimizers)
        return self

    def __exit__(self, *details: object) -> None:
        for handle in self._handles:
            handle.remove()
        for param, had in zip(self._params, self._had_gradient):
            if param.grad is not None and not had:
                self.seen = True


def _refuse(*_: Any) -> None:
    raise UnsupportedFeatureError(
        "train_step updates the weights itself, which only the device adapter can do "
        "where they are divided over processes: return the loss without stepping the "
        "optimizer, or use parallel: {type: ddp}",
        key="parallel",
    )


def average_before_steps(optimizer: Any) -> list[Any]:
    """Make each `step` of a model's own update average the gradients over the ranks.

    DDP only reduces a backward pass that follows its forward; one inside the forward
    would leave each rank with weights of its own. Returns handles with `remove`.
    """
    if get_dist_info()[1] == 1:
        return []

    def average(stepping: Optimizer, *_: Any) -> None:
        groups = stepping.param_groups
        allreduce_grads(param for group in groups for param in group["params"])

    found = optimizer if isinstance(optimizer, list) else optimizers_in(optimizer)
    return [each.register_step_pre_hook(average) for each in found]


def check_policy(policy: UpdatePolicy, optimizer: Any, device: str) -> None:
    """Refuse what cannot work before anything runs.

    Raises:
        ConfigError, UnsupportedFeatureError: naming the part of the policy.
    """
    if policy.options:
        names = ", ".join(map(str, policy.options))
        raise UnsupportedFeatureError(
            f"optimizer_config: {names} means nothing on device {device!r}; remove it",
            key="options",
        )
    if policy.owner == "adapter":
        if optimizer is None:
            raise ConfigError.of(
                "optimizer_config", "is given, but there is no optimizer"
            )
        if isinstance(optimizer, Mapping):
            raise ConfigError(
                f"several optimizers ({', '.join(map(str, optimizer))}) can only be "
                "stepped by the model's own train_step: remove optimizer_config",
                key="optimizer_config",
            )
    if policy.owner == "hook":
        for key, wrong in {
            "cumulative_iters": policy.accumulate > 1,
            "nonfinite": policy.nonfinite == "skip",
        }.items():
            if wrong:
                raise UnsupportedFeatureError(
                    f"{key} cannot be combined with an optimizer hook of your own, "
                    "which accumulates and decides on the update: do it there",
                    key=key,
                )
    if policy.owner == "model":
        check_model_owner(policy, "the model")


def check_model_owner(policy: UpdatePolicy, model_name: str) -> None:
    """Refuse a policy that a model which updates itself would not follow."""
    asked = {
        "grad_clip": policy.grad_clip is not None,
        "cumulative_iters": policy.accumulate > 1,
        "fp16 loss scaling": policy.precision == "fp16",
        "nonfinite 'skip'": policy.nonfinite == "skip",
        "detect_anomalous_params": policy.detect_anomalous_params,
        "micro_batch": policy.micro_batch is not None,
    }
    refused = [name for name, wanted in asked.items() if wanted]
    if refused:
        raise ConfigError(
            f"train_step of {model_name} updates the weights itself, so "
            f"{', '.join(refused)} cannot be done for it: do it there, or return the "
            "loss without stepping the optimizer",
            key="optimizer_config",
        )


def likely_owner(policy: UpdatePolicy, optimizer: Any) -> str:
    """Who updates as far as is known before the first step.

    Only a model's own `train_step`, or a batch processor, may show something else.
    """
    if policy.owner != "auto":
        return policy.owner
    none = optimizer is None or isinstance(optimizer, Mapping)
    return "model" if none else "adapter"


def may_differ(policy: UpdatePolicy, model: StepModule, owner: str) -> bool:
    """Whether the first step may show another owner than the likely one."""
    unknown = owner != "adapter" or (model.may_update and policy.micro_batch is None)
    return policy.owner in ("auto", "adapter") and unknown


def decide_owner(
    policy: UpdatePolicy, watch: UpdateWatch, optimizer: Any, model: StepModule
) -> str:
    """`adapter` or `model`, from the policy and what the first step showed.

    Raises:
        ConfigError: both would update, or neither can.
    """
    if policy.owner == "model":
        return "model"
    name = model.model_name
    if policy.owner == "adapter":
        if watch.seen:
            raise ConfigError(
                f"train_step of {name} updates the weights itself, and so would "
                "optimizer_config: remove one of the two"
            )
        return "adapter"
    if watch.seen:
        check_model_owner(policy, name)
        return "model"
    if optimizer is None:
        if any(p.requires_grad for p in model.parameters()):
            said = "there is no optimizer: nothing updates the weights of %s"
            logger.warning(said, name)
        check_model_owner(policy, name)
        return "model"
    if isinstance(optimizer, Mapping):
        raise ConfigError(
            f"several optimizers ({', '.join(map(str, optimizer))}) are given, but "
            f"train_step of {name} steps none of them: step them there"
        )
    return "adapter"
