"""`Update`: how one optimizer update is done on an eager device, and by whom.

`EagerAdapter.train_step` reads as the update does: `gradients`, `may_step`, step. An
optimizer that evaluates the loss itself (LBFGS) has the first two in a closure. Where
the model, or an optimizer hook of the user's, updates by itself, `forward` is all.
"""

from __future__ import annotations

import contextlib
import inspect
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from devrun.devices.finite import FiniteGuard
from devrun.devices.gradients import Clip, Zero, call_zero_grad
from devrun.devices.overflow import Overflows
from devrun.devices.ownership import UpdateWatch
from devrun.devices.placement import step_module_of
from devrun.devices.precision import LossScaler
from devrun.devices.shares import CountItems, Shares, count_nothing
from devrun.devices.splitting import Pieces, Splitter
from devrun.errors import ConfigError, UnsupportedFeatureError
from devrun.models.step_module import StepModule
from devrun.parallel.strategy import Strategy
from devrun.step import MicroBatches, StepOutput, UpdatePolicy
from devrun.tensors import map_tensors

OnGrads = Callable[[], None] | None

logger = logging.getLogger("devrun")


@dataclass
class Update:
    """A policy made concrete; `None` stands for what is not asked for."""

    owner: str | None = None
    """`adapter`, `model` or `hook`; None before `prepare`."""
    watches: bool = False
    """Whether the first step may still show another owner."""
    host_shared: bool = False
    """Whether the host reads a tensor's value without waiting for a queue."""
    world: int = 1
    """Number of processes."""
    strategy: Strategy = field(default_factory=Strategy)
    """How they train one model."""
    closure: bool = False
    """Whether the optimizer has to be given a function that evaluates the loss."""
    zero: Zero = call_zero_grad
    autocast: contextlib.AbstractContextManager[Any] | None = None
    splitter: Splitter | None = None
    count_items: CountItems = count_nothing
    scaler: LossScaler | None = None
    guard: FiniteGuard | None = None
    unreached: Unreached | None = None
    measure: Clip | None = None
    """Measures the gradients before an update that is left out if they are not finite,
    where no clipping does."""
    clip: Clip | None = None
    overflows: Overflows | None = None
    instead: Callable[..., StepOutput | None] | None = None
    """Does the whole update in another way than operation by operation, or gives None
    and leaves it."""
    after_backward: Callable[[], None] | None = None
    """Called after every micro-batch's backward, as `after_update` after the update:
    where a device wants to be told that work may be launched."""
    after_update: Callable[[], None] | None = None
    bad: Tensor | None = None
    """Ranks whose loss of this update is not finite, if they have told each other."""
    done: Any = None
    """Outputs of a forward pass that was done before; `run` gives them, once."""
    saved: Mapping[str, Any] = field(default_factory=dict)
    """What `load_state_dict` was given."""
    skipped_before: int = 0
    """Updates left out by the runs that this one continues."""

    def take(self, strategy: Strategy, policy: UpdatePolicy) -> None:
        """Do what is spread over processes in the way of `strategy`."""
        self.strategy = strategy
        if strategy.staged:  # no process sees a whole first step
            self.watches = False
        if strategy.casts:
            self.autocast = None
        if self.clip is not None:
            self.clip = strategy.clip_function(policy) or self.clip
        if self.measure is not None:
            self.measure = strategy.largest_gradient() or self.measure

    def gradients(self, model: Any, batch: Any, optimizer: Any) -> StepOutput:
        """Forward and backward of each micro-batch; the outputs of the whole update."""
        parts: Any = batch if isinstance(batch, MicroBatches) else (batch,)
        if not parts:
            raise ConfigError("an update without a batch: the data loader gave none")
        if self.splitter is not None and not isinstance(batch, Pieces):
            return self.splitter.run(
                parts,
                lambda pieces: self.gradients(model, pieces, optimizer),
                step_module_of(model),
                lambda: self.zero(optimizer),
            )
        self.zero(optimizer)
        shares = None
        if len(parts) > 1 or self.world > 1:
            staged = self.strategy.staged
            # a rank that runs out of memory would leave the others waiting for its loss
            judged = self.guard is not None and self.guard.asks
            judged = judged and self.splitter is None and not staged
            shares = Shares(parts, self.count_items, judged=judged)
            if staged:
                return self._through_stages(model, parts, optimizer, shares)
            parts = self.strategy.micro_batches(model, parts)
        for part in parts:
            outputs, loss = self._loss_of(model, part, shares)
            if self.scaler is not None:
                loss = self.scaler.scale(loss)
            loss.backward()
            if self.after_backward is not None:
                self.after_backward()
        if shares is None:
            return outputs
        self.bad = shares.bad
        return shares.merged()

    def _loss_of(
        self, model: Any, part: Any, shares: Shares | None
    ) -> tuple[StepOutput, Any]:
        """The outputs of a micro-batch, and its part of the loss of the update."""
        outputs = self.run(model, part)
        loss = outputs["loss"]
        if loss is None or not loss.requires_grad or loss.is_complex():
            raise no_backward_from(loss, model)
        outputs = detached(outputs)
        if shares is not None:
            loss = shares.of_update(outputs, loss)
        return outputs, loss

    def _through_stages(
        self, model: Any, parts: Sequence[Any], optimizer: Any, shares: Shares
    ) -> StepOutput:
        watch: Any = contextlib.nullcontext()
        if model.may_update:
            watch = UpdateWatch(model, optimizer, divided=True)
        with watch:
            return self.strategy.update(
                parts,
                lambda part: self.run(model, part),
                lambda part: self._loss_of(model, part, shares)[1],
                shares.merged,
            )

    def may_step(
        self, model: Any, outputs: StepOutput, optimizer: Any, on_grads: OnGrads
    ) -> bool:
        """All between backward and step; False where the update is to be left out.

        The values are logged as numbers where the host reads them at no cost.
        """
        if self.world > 1:
            self.strategy.average(model)
        log_vars, loss = outputs["log_vars"], outputs["loss"]
        if self.host_shared:
            loss = loss.tolist()  # in half the time of item()
        if "loss" not in log_vars:
            log_vars["loss"] = loss
        guard, scaler = self.guard, self.scaler
        if guard is not None and guard.blocks(loss, self.bad):
            self.zero(optimizer)
            return False
        if scaler is not None:
            scaler.unscale_(optimizer)
        if self.unreached is not None:
            self.unreached.log()
        if on_grads is not None:
            on_grads()
        if self.measure is not None and guard is not None:
            largest = self.measure(optimizer)
            if largest is not None and guard.blocks_norm(largest):
                return False
        norm = None if self.clip is None else self.clip(optimizer)
        if norm is None:
            return True
        log_vars["grad_norm"] = norm
        # an overflow of scaled gradients is the scaler's affair
        return guard is None or scaler is not None or not guard.blocks_norm(norm)

    def by_closure(
        self, model: Any, batch: Any, optimizer: Any, on_grads: OnGrads
    ) -> StepOutput:
        """An update by an optimizer that asks for the loss as often as it wants.

        What is returned is of its first evaluation, at the weights before the update.
        """
        evaluations: list[StepOutput] = []

        def closure() -> Tensor:
            outputs = self.gradients(model, batch, optimizer)
            self.may_step(model, outputs, optimizer, on_grads)
            evaluations.append(outputs)
            loss: Tensor = outputs["loss"]
            return loss

        optimizer.step(closure)
        return evaluations[0]

    def forward(self, model: Any, batch: Any, on_grads: OnGrads) -> StepOutput:
        """A forward pass alone; a hook's loss keeps its graph for a backward there."""
        if self.owner is None:
            raise RuntimeError(
                "the adapter is not prepared: call prepare(model, ...) first"
            )
        if on_grads is not None:
            raise UnsupportedFeatureError(
                "a hook overrides after_backward, which is never called where the "
                "model or an optimizer hook of your own does the update: do it there"
            )
        if self.strategy.staged:
            raise UnsupportedFeatureError(
                "parallel: mesh pipeline needs an optimizer to train, and there is "
                "none: give one, or only evaluate",
                key="parallel",
            )
        model = step_module_of(model) if self.owner == "model" else model
        outputs = self.run(model, batch)
        loss = outputs["loss"]
        if loss is not None:
            outputs["log_vars"].setdefault("loss", loss.detach())
            if self.guard is not None:
                self.guard.blocks(loss)
        return StepOutput(outputs) if self.owner == "hook" else detached(outputs)

    def run(self, model: Any, batch: Any) -> Any:
        """A forward pass of the model in `train` mode, in the precision asked for.

        Its `log_vars` may lack the loss.
        """
        if self.done is not None:
            outputs, self.done = self.done, None
            return outputs
        if self.autocast is not None:
            with self.autocast:
                return model(batch, "train")
        if type(model) is StepModule:  # past nn.Module's own call, which costs more
            return model.run(model, batch, "train")
        return model(batch, "train")

    @property
    def skipped(self) -> int:
        """Updates of the run that were left out so far."""
        guarded = 0 if self.guard is None else self.guard.skipped
        overflown = 0 if self.overflows is None else self.overflows.total
        return self.skipped_before + guarded + overflown

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run needs."""
        state = dict(self.saved)
        if self.owner is not None and not self.watches:
            state["owner"] = self.owner
        for name, part in self._stateful().items():
            state[name] = part.state_dict()
        if self.skipped:
            state["skipped_updates"] = self.skipped
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take back what `state_dict` gave; also by a rollback, amid the counting."""
        self.saved = dict(state)
        self.skipped_before += state.get("skipped_updates", 0) - self.skipped
        for name, part in self._stateful().items():
            if state.get(name):
                part.load_state_dict(dict(state[name]))

    def _stateful(self) -> dict[str, Any]:
        parts = {
            "scaler": None if self.scaler is None else self.scaler.grad_scaler,
            "spikes": None if self.guard is None else self.guard.spikes,
            "micro_batch": self.splitter,
        }
        return {name: part for name, part in parts.items() if part is not None}


class Unreached:
    """Logs, each once, the parameters of `module` that the loss does not reach."""

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self._logged: set[str] = set()

    def log(self) -> None:
        """To be called once the gradients are complete."""
        for name, param in self._module.named_parameters():
            if param.is_meta or name in self._logged:  # of another process
                continue
            if param.requires_grad and param.grad is None:
                self._logged.add(name)
                logger.error(
                    "%s with shape %s is not in the computational graph of the loss",
                    name,
                    tuple(param.shape),
                )


def needs_closure(optimizer: Any) -> bool:
    """Whether `step` cannot be called without a function that gives the loss."""
    step = getattr(optimizer, "step", None)
    if step is None:
        return False
    parameter = inspect.signature(step).parameters.get("closure")
    return parameter is not None and parameter.default is inspect.Parameter.empty


def check_closure(update: Update) -> None:
    """Refuse what cannot be done where the optimizer evaluates the loss itself.

    Raises:
        UnsupportedFeatureError: fp16 loss scaling, or skipping updates.
    """
    if update.scaler is not None:
        raise UnsupportedFeatureError(
            "an optimizer that needs a closure (LBFGS) cannot be combined with fp16 "
            "loss scaling: use fp32 or bf16",
            key="precision",
        )
    if update.guard is not None and update.guard.action == "skip":
        raise UnsupportedFeatureError(
            "nonfinite 'skip' cannot be combined with an optimizer that needs a "
            "closure (LBFGS): use 'stop', 'warn' or 'ignore'",
            key="nonfinite",
        )


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


def no_backward_from(loss: Any, model: Any) -> ConfigError:
    """Why no backward pass can start from `loss`."""
    name = step_module_of(model).model_name
    if loss is None:
        return ConfigError(f"{name} returned no loss tensor to train on, got None")
    if loss.requires_grad:
        return ConfigError(
            f"the loss of {name} is complex ({loss.dtype}): training needs a real "
            "number, such as its abs() or its real part"
        )
    return ConfigError(
        f"the loss of {name} has no gradient path: no parameter that requires a "
        "gradient takes part in it (all frozen, or detached on the way)"
    )
