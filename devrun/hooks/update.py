"""The optimizer hooks: what `optimizer_config` says, as an `UpdatePolicy`.

The shipped classes only describe the update; the device adapter does it. A subclass
of one of them is taken at its word: it does the update itself in `after_train_iter`,
as in MMCV, on the devices that let it (`Capability.HOOK_UPDATE`).
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from torch import Tensor, nn

from devrun.dist import allreduce_grads
from devrun.errors import UnsupportedFeatureError
from devrun.hooks.base import Hook, Priority
from devrun.parallel.divided import is_divided
from devrun.registry import HOOKS
from devrun.run import Run
from devrun.step import Capability, UpdatePolicy
from devrun.torch_features import GradScaler


@HOOKS.register_module()
class OptimizerHook(Hook):
    """How the optimizer is driven.

    Args:
        grad_clip: arguments of `torch.nn.utils.clip_grad_norm_` (`max_norm`,
            `norm_type`), or `clip_value` for `clip_grad_value_`.
        detect_anomalous_params: log the parameters the loss does not reach.
        cumulative_iters: batches whose gradients make one update.
        precision: `fp32`, `bf16` or `fp16` (autocast); `fp8` where a device has it.
            None is fp32, unless the device's `performance` chooses another.
        loss_scale: fp16 only; a factor, `dynamic`, or `GradScaler` arguments.
        nonfinite: on a NaN or infinite loss `stop`, `skip`, `warn` or `ignore`.
        micro_batch: samples of a micro-batch at most: batches are divided and their
            gradients added up. `auto` halves them until they fit into memory.
        mean_over: what the loss of an update is the mean over, where it is taken from
            several micro-batches or ranks, and that of an evaluation: the valid
            `targets` (tokens), or the `samples`. `labels` divides training losses of
            causal models by all labels, as transformers before 5.11 does.
        options: what only some devices understand, such as `accum_type` on an IPU.
    """

    priority = Priority.ABOVE_NORMAL

    def __init__(
        self,
        grad_clip: Mapping[str, Any] | None = None,
        detect_anomalous_params: bool = False,
        *,
        cumulative_iters: int = 1,
        precision: str | None = None,
        loss_scale: float | str | Mapping[str, Any] = "dynamic",
        nonfinite: str = "stop",
        micro_batch: int | str | None = None,
        mean_over: str = "targets",
        options: Mapping[str, Any] | None = None,
    ) -> None:
        own = self.updates_itself
        policy = UpdatePolicy(
            owner="hook" if own else "adapter",
            grad_clip=grad_clip,
            accumulate=cumulative_iters,
            precision="fp32" if precision is None else precision,
            precision_open=precision is None,
            loss_scale=loss_scale,
            nonfinite=nonfinite,
            micro_batch=micro_batch,
            mean_over=mean_over,
            detect_anomalous_params=detect_anomalous_params,
            options=options or {},
        )
        self.policy = replace(policy, accumulate=1) if own else policy
        """The same as plain data."""
        self.grad_clip, self.loss_scale = policy.grad_clip, policy.loss_scale
        self.cumulative_iters = cumulative_iters
        self.detect_anomalous_params = detect_anomalous_params
        self._scaler: GradScaler | None = None
        self._saved: dict[str, Any] = {}
        self._helps = False  # known when a run begins
        self._seen_steps = 0
        if own:
            self.requires |= {Capability.HOOK_UPDATE}

    @property
    def updates_itself(self) -> bool:
        """True for a user's subclass, which overrides how the update is done."""
        return type(self) not in _SHIPPED

    def get_triggered_stages(self) -> list[str]:
        # A shipped hook only describes the update: nothing to call in the loop,
        # but in that of a user's runner, which leaves the update to it as in MMCV.
        called = self.updates_itself or self._helps
        return super().get_triggered_stages() if called else ["before_run"]

    def before_run(self, runner: Run) -> None:
        self._helps = runner.own_loop

    def clip_grads(self, params: Iterable[nn.Parameter]) -> Tensor | None:
        """Clip the gradients in `params`; their total norm, or None if none has one."""
        with_grad = [p for p in params if p.requires_grad and p.grad is not None]
        if not with_grad or self.grad_clip is None:
            return None
        clip = dict(self.grad_clip)
        if "clip_value" in clip:
            nn.utils.clip_grad_value_(with_grad, **clip)
            return None
        return nn.utils.clip_grad_norm_(with_grad, **clip)

    def after_train_iter(self, runner: Run) -> None:
        """One MMCV-style update, for subclasses and for loops of a user's own."""
        if not self.updates_itself:
            before, self._seen_steps = self._seen_steps, runner.train_steps
            if runner.train_steps != before:
                return
            _require_hook_update(runner)
        loss = runner.outputs["loss"]
        if self.detect_anomalous_params:
            self.detect_anomalous_parameters(loss, runner)
        scaler = self._grad_scaler(loss)
        if runner.iter % self.cumulative_iters == 0:
            runner.optimizer.zero_grad()
        scaler.scale(loss / self._batches_in_update(runner)).backward()
        last = runner.max_iters is not None and runner.iter + 1 == runner.max_iters
        if (runner.iter + 1) % self.cumulative_iters and not last:
            return
        if not self.updates_itself:  # the loop went past what averages over the ranks
            if is_divided(runner.model):
                raise UnsupportedFeatureError(
                    "a loop of your own that goes past the device adapter cannot train "
                    "weights divided over processes: call runner.run_iter in it"
                )
            allreduce_grads(runner.model.parameters())
        scaler.unscale_(runner.optimizer)
        if self.grad_clip is not None:
            norm = self.clip_grads(runner.model.parameters())
            if norm is not None:
                runner.log_buffer.update(
                    {"grad_norm": norm}, runner.outputs["num_samples"]
                )
        scaler.step(runner.optimizer)
        scaler.update(self.policy.fixed_scale)

    def state_dict(self) -> dict[str, Any]:
        """The scale of the loss, where this hook scales it."""
        state = self._saved if self._scaler is None else self._scaler.state_dict()
        return {"scaler": state} if state else {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Taken at the next update, which makes the scaler."""
        self._saved, self._scaler = state["scaler"], None

    def _batches_in_update(self, runner: Run) -> int:
        """Those that share the update in progress: the last of a run may have few."""
        count, total = self.cumulative_iters, runner.max_iters
        rest = 0 if total is None else total % count
        return rest if rest and total and runner.iter >= total - rest else count

    def detect_anomalous_parameters(self, loss: Tensor, runner: Run) -> None:
        """Log, as errors, the parameters that are not in the graph of `loss`."""
        reached: set[int] = set()
        seen: set[Any] = set()
        stack: list[Any] = [loss.grad_fn]
        while stack:
            node = stack.pop()
            if node is None or node in seen:
                continue
            seen.add(node)
            if hasattr(node, "variable"):
                reached.add(id(node.variable))
            stack.extend(parent for parent, _ in node.next_functions)
        for name, parameter in runner.model.named_parameters():
            if parameter.requires_grad and id(parameter) not in reached:
                runner.logger.log(
                    logging.ERROR,
                    f"{name} with shape {tuple(parameter.shape)} is not in the "
                    "computational graph",
                )

    def _grad_scaler(self, loss: Tensor) -> GradScaler:
        if self._scaler is None:
            enabled = self.policy.precision == "fp16"
            arguments = self.policy.scaler_arguments
            self._scaler = GradScaler(loss.device.type, enabled=enabled, **arguments)
            if self._saved:
                self._scaler.load_state_dict(self._saved)
        return self._scaler


@HOOKS.register_module()
class GradientCumulativeOptimizerHook(OptimizerHook):
    """`OptimizerHook` whose update takes the gradients of several batches."""

    def __init__(self, cumulative_iters: int = 1, **kwargs: Any) -> None:
        super().__init__(cumulative_iters=cumulative_iters, **kwargs)


@HOOKS.register_module()
class Fp16OptimizerHook(OptimizerHook):
    """`OptimizerHook` in half precision with a scaled loss.

    Args:
        grad_clip: see `OptimizerHook`.
        coalesce, bucket_size_mb, distributed: MMCV's arguments about the gradient
            reduction; DistributedDataParallel does it, so they change nothing.
        loss_scale: a factor, `dynamic`, or `GradScaler` arguments.
    """

    def __init__(
        self,
        grad_clip: Mapping[str, Any] | None = None,
        coalesce: bool = True,
        bucket_size_mb: int = -1,
        loss_scale: float | str | Mapping[str, Any] = 512.0,
        distributed: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(
            grad_clip=grad_clip, precision="fp16", loss_scale=loss_scale, **kwargs
        )
        self.coalesce = coalesce
        self.bucket_size_mb = bucket_size_mb
        self.distributed = distributed


@HOOKS.register_module()
class GradientCumulativeFp16OptimizerHook(Fp16OptimizerHook):
    """Half precision and accumulation together."""

    def __init__(self, cumulative_iters: int = 1, **kwargs: Any) -> None:
        super().__init__(cumulative_iters=cumulative_iters, **kwargs)


_SHIPPED = frozenset(
    {
        OptimizerHook,
        GradientCumulativeOptimizerHook,
        Fp16OptimizerHook,
        GradientCumulativeFp16OptimizerHook,
    }
)


def _require_hook_update(runner: Run) -> None:
    if Capability.HOOK_UPDATE not in runner.adapter.capabilities:
        raise UnsupportedFeatureError(
            f"{type(runner).__name__} does the training step itself, which device "
            f"{runner.adapter.name!r} cannot: call super().run_iter(...) for it"
        )
