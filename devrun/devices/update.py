"""One optimizer update on an eager device.

    plain    zero_grad, forward, backward, [clip], step: fp32 on one process
    full     the same with any of accumulation, autocast, loss scaling, DDP
    closure  full, for optimizers that evaluate the loss themselves (LBFGS)
    forward  no update: the model, or the user's optimizer hook, does it

Which one is chosen once, so that a step asks no questions whose answer is known.
"""

from __future__ import annotations

import contextlib
import inspect
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from devrun.devices.finite import FiniteGuard
from devrun.devices.gradients import Clip, Zero, call_zero_grad
from devrun.devices.overflow import Overflows
from devrun.devices.placement import step_module_of
from devrun.devices.precision import LossScaler
from devrun.devices.shares import CountItems, Shares, count_nothing
from devrun.devices.splitting import Splitter
from devrun.errors import ConfigError, UnsupportedFeatureError
from devrun.step import MicroBatches, StepOutput
from devrun.tensors import map_tensors

__all__ = [
    "StepFunction",
    "UpdatePlan",
    "checked_loss",
    "closure_step",
    "detached",
    "forward_step",
    "full_step",
    "needs_closure",
    "plain_step",
]

OnGrads = Callable[[], None] | None
StepFunction = Callable[[Any, Any, Any, OnGrads], StepOutput]

logger = logging.getLogger("devrun")


@dataclass
class UpdatePlan:
    """A policy made concrete; `None` stands for what is not asked for."""

    guard: FiniteGuard | None = None
    zero: Zero = call_zero_grad
    clip: Clip | None = None
    measure: Clip | None = None
    """Measures the gradients before an update that is left out if they are not finite,
    where no clipping does."""
    overflows: Overflows | None = None
    autocast: contextlib.AbstractContextManager[Any] | None = None
    scaler: LossScaler | None = None
    watched: nn.Module | None = None
    """Where to look for parameters that the loss does not reach."""
    accumulate: int = 1
    count_items: CountItems = count_nothing
    splitter: Splitter | None = None
    after_backward: Callable[[], None] | None = None
    """Called after every micro-batch's backward, as `after_update` after the update:
    where a device wants to be told that work may be launched."""
    after_update: Callable[[], None] | None = None
    reported: set[str] = field(default_factory=set)

    @property
    def skipped(self) -> int:
        """Updates left out so far."""
        guarded = 0 if self.guard is None else self.guard.skipped
        return guarded + (0 if self.overflows is None else self.overflows.total)

    @property
    def is_plain(self) -> bool:
        asked = (
            self.autocast,
            self.scaler,
            self.measure,
            self.watched,
            self.after_backward,
            self.after_update,
            self.splitter,
        )
        return self.accumulate == 1 and all(part is None for part in asked)

    def stateful(self) -> list[tuple[str, Any]]:
        """What of it a checkpoint keeps, by name."""
        spikes = None if self.guard is None else self.guard.spikes
        parts = {"spikes": spikes, "micro_batch": self.splitter}
        return [(name, part) for name, part in parts.items() if part is not None]


def plain_step(plan: UpdatePlan) -> StepFunction:
    """The shortest way through an update, for a plan with `is_plain`.

    The model is the `StepModule` itself, in no wrapper. Calls are written out where a
    helper would read better: they are what devrun adds to a hand-written loop.
    """
    guard, clip, zero = plan.guard, plan.clip, plan.zero
    reads = guard is not None and guard.reads_plainly
    blocks = None if guard is None or reads else guard.blocks

    def step(model: Any, batch: Any, optimizer: Any, on_grads: OnGrads) -> StepOutput:
        zero(optimizer)
        outputs = model.run(model, batch, "train")
        loss = outputs["loss"]
        outputs["loss"] = noted = loss.detach()
        log_vars = outputs["log_vars"]
        if not reads and "loss" not in log_vars:
            log_vars["loss"] = noted
        if blocks is not None and blocks(loss):
            return detached(outputs)
        loss.backward()
        if on_grads is not None:
            on_grads()
        norm = None if clip is None else clip(optimizer)
        if reads:
            # tolist takes half the time of item; a difference of a number from itself
            # is not 0 for nan and infinities
            value: Any = loss.tolist()
            if "loss" not in log_vars:
                log_vars["loss"] = value
            if norm is not None:
                log_vars["grad_norm"] = number = norm.tolist()
                value += number
            if value - value != 0:
                _explain_nonfinite(guard, noted, norm)
        elif norm is not None:
            log_vars["grad_norm"] = norm
            if guard is not None and guard.blocks_norm(norm):
                return detached(outputs)
        optimizer.step()
        return StepOutput(outputs) if len(outputs) == 3 else detached(outputs)

    return step


def _explain_nonfinite(guard: Any, loss: Tensor, norm: Tensor | None) -> None:
    guard.blocks(loss)
    if norm is not None:
        guard.blocks_norm(norm)


def full_step(plan: UpdatePlan, reduce: OnGrads = None) -> StepFunction:
    """An update with anything a policy can ask for.

    `reduce` averages the gradients over the ranks where DDP does not.
    """

    def step(model: Any, batch: Any, optimizer: Any, on_grads: OnGrads) -> StepOutput:
        plan.zero(optimizer)
        outputs = _gradients(plan, model, batch, reduce)
        if _finished(plan, outputs, optimizer, on_grads):
            if plan.scaler is not None:
                plan.scaler.step(optimizer)
            else:
                optimizer.step()
        if plan.after_update is not None:
            plan.after_update()
        return outputs

    return step


def closure_step(plan: UpdatePlan, reduce: OnGrads = None) -> StepFunction:
    """An update by an optimizer that asks for the loss as often as it wants.

    What is returned is of its first evaluation, at the weights before the update.
    """
    if plan.scaler is not None:
        raise UnsupportedFeatureError(
            "an optimizer that needs a closure (LBFGS) cannot be combined with fp16 "
            "loss scaling: use fp32 or bf16"
        )
    if plan.guard is not None and plan.guard.action == "skip":
        raise UnsupportedFeatureError(
            "nonfinite 'skip' cannot be combined with an optimizer that needs a "
            "closure (LBFGS): use 'stop', 'warn' or 'ignore'"
        )

    def step(model: Any, batch: Any, optimizer: Any, on_grads: OnGrads) -> StepOutput:
        evaluations: list[StepOutput] = []

        def closure() -> Tensor:
            plan.zero(optimizer)
            outputs = _gradients(plan, model, batch, reduce)
            _finished(plan, outputs, optimizer, on_grads)
            evaluations.append(outputs)
            loss: Tensor = outputs["loss"]
            return loss

        optimizer.step(closure)
        if plan.after_update is not None:
            plan.after_update()
        return evaluations[0]

    return step


def forward_step(plan: UpdatePlan, *, keep_graph: bool) -> StepFunction:
    """A forward pass alone; `keep_graph` leaves the loss to a backward elsewhere."""
    guard = None if plan.guard is None else plan.guard.blocks
    autocast = plan.autocast or contextlib.nullcontext()

    def step(model: Any, batch: Any, optimizer: Any, on_grads: OnGrads) -> StepOutput:
        if on_grads is not None:
            raise UnsupportedFeatureError(
                "a hook overrides after_backward, which is never called where the "
                "model or an optimizer hook of your own does the update: do it there"
            )
        with autocast:
            outputs = model(batch, "train")
        loss = outputs["loss"]
        if guard is not None and loss is not None:
            guard(loss)
        return StepOutput(outputs) if keep_graph else detached(outputs)

    return step


def needs_closure(optimizer: Any) -> bool:
    """Whether `step` cannot be called without a function that gives the loss."""
    parameter = inspect.signature(optimizer.step).parameters.get("closure")
    return parameter is not None and parameter.default is inspect.Parameter.empty


def detached(outputs: dict[str, Any]) -> StepOutput:
    """The outputs without their graph, which would keep the activations alive."""
    result = StepOutput(outputs)
    loss = result["loss"]
    if loss is not None:
        result["loss"] = loss.detach()
    if len(result) > 3:  # more than loss, log_vars and num_samples
        for key, value in result.items():
            result[key] = map_tensors(Tensor.detach, value)
    return result


def _gradients(plan: UpdatePlan, model: Any, batch: Any, reduce: OnGrads) -> StepOutput:
    """Forward and backward of every micro-batch; outputs of the whole update."""
    parts = batch if isinstance(batch, MicroBatches) else (batch,)
    if not parts:
        raise ConfigError("an update without a batch: the data loader gave none")
    if plan.splitter is None:
        outputs = _backward(plan, model, parts)
    else:
        inner = step_module_of(model)
        outputs = plan.splitter.run(
            parts,
            lambda pieces: _backward(plan, model, pieces),
            inner,
            lambda: plan.zero(inner.optimizer),
        )
    if reduce is not None:
        reduce()
    return outputs


def _backward(plan: UpdatePlan, model: Any, parts: Sequence[Any]) -> StepOutput:
    shares = Shares(parts, plan.count_items)
    autocast = plan.autocast or contextlib.nullcontext()
    done: list[StepOutput] = []
    for index, part in enumerate(parts):
        last = index == len(parts) - 1
        # DDP exchanges gradients in the last backward only: once per update
        with contextlib.nullcontext() if last else _unsynced(model):
            with autocast:
                outputs = model(part, "train")
            loss = checked_loss(model, outputs["loss"])
            done.append(detached(outputs))
            loss = shares.of_update(index, loss)
            if plan.scaler is not None:
                loss = plan.scaler.scale(loss)
            loss.backward()
            if plan.after_backward is not None:
                plan.after_backward()
    return shares.merged(done)


def _finished(
    plan: UpdatePlan, outputs: StepOutput, optimizer: Any, on_grads: OnGrads
) -> bool:
    """What comes between backward and update; whether the update may be done."""
    if plan.guard is not None and plan.guard.blocks(outputs["loss"]):
        plan.zero(optimizer)
        return False
    if plan.scaler is not None:
        plan.scaler.unscale_(optimizer)
    if plan.watched is not None:
        _log_unreached(plan.watched, plan.reported)
    if on_grads is not None:
        on_grads()
    if plan.measure is not None and plan.guard is not None:
        largest = plan.measure(optimizer)
        if largest is not None and plan.guard.blocks_norm(largest):
            return False
    norm = None if plan.clip is None else plan.clip(optimizer)
    if norm is None:
        return True
    outputs["log_vars"]["grad_norm"] = norm
    # an overflow of scaled gradients is the scaler's affair
    if plan.guard is None or plan.scaler is not None:
        return True
    return not plan.guard.blocks_norm(norm)


def checked_loss(model: Any, loss: Any) -> Tensor:
    """`loss`, if a backward pass can start from it; else ConfigError."""
    if isinstance(loss, Tensor) and loss.requires_grad and not loss.is_complex():
        return loss
    name = getattr(step_module_of(model), "model_name", "the model")
    if isinstance(loss, Tensor) and loss.is_complex():
        raise ConfigError(
            f"the loss of {name} is complex ({loss.dtype}): training needs a real "
            "number, such as its abs() or its real part"
        )
    if not isinstance(loss, Tensor):
        raise ConfigError(f"{name} returned no loss tensor to train on, got {loss!r}")
    raise ConfigError(
        f"the loss of {name} has no gradient path: no parameter that requires a "
        "gradient takes part in it (all frozen, or detached on the way)"
    )


def _unsynced(model: Any) -> contextlib.AbstractContextManager[Any]:
    no_sync = getattr(model, "no_sync", None)
    return contextlib.nullcontext() if no_sync is None else no_sync()


def _log_unreached(watched: nn.Module, reported: set[str]) -> None:
    for name, param in watched.named_parameters():
        if param.requires_grad and param.grad is None and name not in reported:
            reported.add(name)
            logger.error(
                "%s with shape %s is not in the computational graph of the loss",
                name,
                tuple(param.shape),
            )
