"""`UpdateRule`: how one optimizer update is done on an eager device, and by whom.

A value that `EagerAdapter.update_rule` makes once; a step only runs it. `AdapterUpdate`
reads as the update does: gradients, `may_step`, the optimizer's step. An optimizer that
evaluates the loss itself (LBFGS) has the first two in a closure: `ClosureUpdate`. Where
the model, or an optimizer hook of the user's, updates by itself, a forward pass is all:
`ModelUpdate`, `HookUpdate`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Callable, ClassVar, Optional

from torch import Tensor, nn

from devrun.devices.finite import FiniteGuard
from devrun.devices.gradients import Clip, Step, Zero, call_step, call_zero_grad
from devrun.devices.loss_weights import CountItems, LossWeights, count_nothing
from devrun.devices.placement import ForwardDone, step_module_of
from devrun.devices.precision import LossScaler
from devrun.devices.splitting import Pieces, Splitter
from devrun.errors import ConfigError, NoGradientError, UnsupportedFeatureError
from devrun.models.step_module import StepModule
from devrun.parallel.strategy import Strategy
from devrun.step import MicroBatches, StepOutput
from devrun.tensors import map_tensors

OnGrads = Optional[Callable[[], None]]

logger = logging.getLogger("devrun")


@dataclass(frozen=True)
class UpdateRule:
    """A policy made concrete; `None` stands for what is not asked for.

    As it is, nobody updates: that of an adapter before `prepare`.
    """

    owner: ClassVar[str | None] = None
    """Who updates: `adapter`, `model` or `hook`."""
    host_shared: bool = False
    """Whether the host reads a tensor's value without waiting for a queue."""
    world: int = 1
    """Number of processes."""
    strategy: Strategy = field(default_factory=Strategy)
    """How they train one model."""
    zero: Zero = call_zero_grad
    advance: Step = call_step
    """One step of the optimizer, where no loss scale is between."""
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
    after_backward: Callable[[], None] | None = None
    """Called after every micro-batch's backward, as `after_update` after the update:
    where a device wants to be told that work may be launched."""
    after_update: Callable[[], None] | None = None
    around_steps: Callable[[Any], Sequence[Any]] | None = None
    """The same for an optimizer that is stepped elsewhere: handles with `remove`."""

    def by(self, owner: str, *, closure: bool = False) -> UpdateRule:
        """The same, done by another owner."""
        kind = {"model": ModelUpdate, "hook": HookUpdate}.get(owner, AdapterUpdate)
        if closure and owner == "adapter":
            kind = ClosureUpdate
        own = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        return kind(**own)

    def step(
        self, model: Any, batch: Any, optimizer: Any, on_grads: OnGrads
    ) -> StepOutput:
        """One update, and its outputs.

        Its `log_vars` have the loss and, where it was clipped, the gradients' norm; as
        numbers where the host reads them at no cost.
        """
        raise RuntimeError(
            "the adapter is not prepared: call prepare(model, ...) first"
        )

    def forward(self, model: Any, batch: Any) -> Any:
        """A forward pass of the model in `train` mode, in the precision asked for.

        Its `log_vars` may lack the loss.
        """
        with self.autocast or contextlib.nullcontext():
            return model(batch, "train")

    @property
    def skipped(self) -> int:
        """Updates left out so far."""
        guarded = 0 if self.guard is None else self.guard.skipped
        return guarded + (0 if self.scaler is None else self.scaler.left_out)

    def parts_with_state(self) -> dict[str, Any]:
        """What of it a resumed run needs, by the name under which it is saved."""
        parts = {"scaler": self.scaler, "micro_batch": self.splitter}
        return {name: part for name, part in parts.items() if part is not None}


class AdapterUpdate(UpdateRule):
    """Forward, backward, clipping and the optimizer's step."""

    owner = "adapter"

    def step(
        self, model: Any, batch: Any, optimizer: Any, on_grads: OnGrads
    ) -> StepOutput:
        outputs = self.gradients(model, batch, optimizer)
        if self.may_step(model, outputs, optimizer, on_grads):
            if self.scaler is None:
                self.advance(optimizer)
            else:
                self.scaler.step(optimizer)
        if self.after_update is not None:
            self.after_update()
        return outputs

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
        weights = None
        if len(parts) > 1 or self.world > 1:
            weights = LossWeights(parts, self.count_items)
            parts = self.strategy.micro_batches(model, parts)
        for part in parts:
            outputs, loss = self._loss_of(model, part, weights)
            if self.scaler is not None:
                loss = self.scaler.scale(loss)
            loss.backward()
            if self.after_backward is not None:
                self.after_backward()
        return outputs if weights is None else weights.merged()

    def _loss_of(
        self, model: Any, part: Any, weights: LossWeights | None
    ) -> tuple[StepOutput, Any]:
        """The outputs of a micro-batch, and its part of the loss of the update."""
        if self.autocast is None and type(model) is StepModule:
            # past nn.Module's own call, which costs more
            given = model.run(model, part, "train")
        else:
            given = self.forward(model, part)
        loss = given["loss"]
        if loss is None or not loss.requires_grad or loss.is_complex():
            raise no_backward_from(loss, model)
        outputs = StepOutput(given)
        outputs["loss"] = loss.detach()
        if len(outputs) > 3:  # more than loss, log_vars and num_samples
            outputs = detached(outputs)
        if weights is not None:
            loss = weights.of_update(outputs, loss)
        return outputs, loss

    def may_step(
        self,
        model: Any,
        outputs: StepOutput,
        optimizer: Any,
        on_grads: OnGrads,
    ) -> bool:
        """All between backward and step; False where the update is to be left out."""
        if self.world > 1:
            self.strategy.average(model)
        log_vars, loss = outputs["log_vars"], outputs["loss"]
        if self.host_shared:
            loss = loss.tolist()  # in half the time of item()
        if "loss" not in log_vars:
            log_vars["loss"] = loss
        guard, scaler = self.guard, self.scaler
        if guard is not None and guard.blocks(loss):
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


class ClosureUpdate(AdapterUpdate):
    """For an optimizer that asks for the loss as often as it wants.

    What is returned is of its first evaluation, at the weights before the update.
    """

    def step(
        self, model: Any, batch: Any, optimizer: Any, on_grads: OnGrads
    ) -> StepOutput:
        evaluations: list[StepOutput] = []

        def closure() -> Tensor:
            outputs = self.gradients(model, batch, optimizer)
            self.may_step(model, outputs, optimizer, on_grads)
            evaluations.append(outputs)
            loss: Tensor = outputs["loss"]
            return loss

        optimizer.step(closure)
        if self.after_update is not None:
            self.after_update()
        return evaluations[0]


class HookUpdate(UpdateRule):
    """A forward pass alone; its loss keeps its graph for a backward in the hook."""

    owner = "hook"

    def step(
        self, model: Any, batch: Any, optimizer: Any, on_grads: OnGrads
    ) -> StepOutput:
        if on_grads is not None:
            raise UnsupportedFeatureError(
                "a hook overrides after_backward, which is never called where the "
                "model or an optimizer hook of your own does the update: do it there"
            )
        outputs = self.forward(model, batch)
        loss = outputs["loss"]
        if loss is not None:
            outputs["log_vars"].setdefault("loss", loss.detach())
            if self.guard is not None:
                self.guard.blocks(loss)
        return StepOutput(outputs)


class ModelUpdate(HookUpdate):
    """A forward pass of the bare model, which updates in it."""

    owner = "model"

    def step(
        self, model: Any, batch: Any, optimizer: Any, on_grads: OnGrads
    ) -> StepOutput:
        inner = model if isinstance(model, ForwardDone) else step_module_of(model)
        return detached(super().step(inner, batch, optimizer, on_grads))


class EarlierRuns:
    """What a run takes up of the runs that it continues, and what it hands on."""

    def __init__(self) -> None:
        self.state: dict[str, Any] = {}
        """What `take` was given."""
        self.skipped = 0
        """Updates that they left out."""

    def take(self, update: UpdateRule, state: Mapping[str, Any]) -> None:
        """Give the parts of `update` their state."""
        self.state = dict(state)
        self.skipped = state.get("skipped_updates", 0) - update.skipped
        for name, part in update.parts_with_state().items():
            if state.get(name):
                part.load_state_dict(dict(state[name]))

    def continued(self, update: UpdateRule, *, decided: bool) -> dict[str, Any]:
        """What a resumed run needs; `decided`: the owner of the updates is known."""
        state = dict(self.state)
        if update.owner is not None and decided:
            state["owner"] = update.owner
        for name, part in update.parts_with_state().items():
            state[name] = part.state_dict()
        if skipped := self.skipped + update.skipped:
            state["skipped_updates"] = skipped
        return state


class Unreached:
    """Logs, each once, the parameters of `module` that the loss does not reach."""

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self._logged: set[str] = set()

    def log(self) -> None:
        """To be called once the gradients are complete."""
        for name, param in self._module.named_parameters():
            if name in self._logged:
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


def check_closure(update: UpdateRule) -> None:
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
    items = outputs.items()
    return StepOutput({key: map_tensors(Tensor.detach, value) for key, value in items})


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
    return NoGradientError(
        f"the loss of {name} has no gradient path: no parameter that requires a "
        "gradient takes part in it (all frozen, or detached on the way)"
    )
