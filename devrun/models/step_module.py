"""`StepModule`: the one `forward` that DDP, compilers and vendor SDKs wrap.

Which of the contracts a model keeps is found once, when it is wrapped:

    train_step(batch, optimizer) -> {loss, log_vars, num_samples}        MMCV's
    forward(**batch) -> a dict or object with `loss`                     its own loss
    forward(x) and a separate loss(output, target)                       plain PyTorch

A model that keeps none of them comes with a `ModelContract` of its own.
"""

from __future__ import annotations

import functools
import inspect
import warnings
from collections.abc import Callable
from typing import Any, Protocol

from torch import nn
from torch.nn.modules.loss import _Loss

from devrun.errors import ConfigError, ConfigTypeError
from devrun.models.calls import Wrapped, shifts_labels
from devrun.models.steps import (
    MODES,
    own_step,
    processor_step,
    self_loss_step,
    separate_loss_step,
)


class ModelContract(Protocol):
    """How a model is trained that keeps none of the plain contracts.

    Whoever knows the model's kind makes it for that model; the runner, the session and
    the step module know this alone.
    """

    brings_optimizer: bool
    """Whether the model may make its optimizer, so that a config needs none."""
    batches: int | None
    """Of an epoch of all processes, once the loader is known; the session writes it."""
    stacked: Callable[[Wrapped, Any, str], Any] | None
    """Makes tensors of a batch, `stacked(step_module, batch, mode)`, for a device that
    compiles a step; None where its batches are tensors."""

    def join(self, run: Any, optimizer: Any, loss: Any) -> None:
        """The model takes part in `run`, which was given `optimizer` and `loss`.

        Raises:
            ConfigError: one of the two contradicts the model.
        """
        ...

    def optimizer(self) -> Any:
        """The one that the model brings, or None; asked once, where none is given."""
        ...

    def step(self, step: Wrapped, batch: Any, mode: str) -> dict[str, Any]:
        """One step: what `StepModule.forward` returns, but `log_vars` may lack the
        loss."""
        ...


class StepModule(nn.Module):
    """The user's model with one entry for every mode of every kind of model.

    `forward(batch, mode)`, with the mode `train`, `val` or `predict`, returns a dict
    (what `generate` takes and returns is in `devrun.models.generation`):

    - `loss`: 0-d, with its graph; None in `predict` mode where the model has none,
      and in `train` mode where a `train_step` returned none (it did the update);
    - `log_vars`: name -> number or detached 0-d tensor, the loss included;
    - `num_samples`: int;
    - `num_items`, of token labels and when not training: how many targets the loss is
      the mean over, a 0-d tensor (`devrun.models.calls`);
    - `predictions`, `targets`, when not training and where they are known;
    - whatever else the model returned (without a `train_step`: only when not
      training, so that no activation outlives its step).

    Args:
        model: the user's module, kept as `.module`; its `state_dict` is canonical.
        loss: `loss(output, target)`, for models that compute none themselves.
        batch_processor: MMCV's `f(model, data, train_mode)`; deprecated.
        contract: of a model that keeps none of the above: its `step` becomes `run`,
            and its `stacked`, where it has one, what makes tensors of a batch.

    Raises:
        ConfigError: the parts contradict each other, or (from `forward`) the model
            does not keep its contract; the message names its class.
    """

    model: nn.Module
    call_loss: Any
    run: Callable[[Any, Any, str], dict[str, Any]]
    """The step of this kind of model, `run(self, batch, mode)`: what `forward` does,
    but `log_vars` may lack the loss. For loops that count every microsecond."""
    counts_items: bool
    """Whether the loss is a mean over targets; False where a `train_step` makes it."""
    counts_labels: bool
    """Whether that is over the labels, with those that a causal model shifts out."""
    may_update: bool
    """Whether a step may do the update itself, as a `train_step` of MMCV's may."""
    stacked: Callable[[Any, str], Any] | None = None
    """Makes tensors of a batch, `stacked(batch, mode)`, for a device that compiles a
    step; None where its batches are tensors."""
    optimizer: Any
    """Handed to `train_step`; set by whoever prepares the pair."""

    def __init__(
        self,
        model: nn.Module,
        loss: Callable[..., Any] | None = None,
        batch_processor: Callable[..., Any] | None = None,
        contract: ModelContract | None = None,
    ) -> None:
        super().__init__()
        name = type(model).__name__
        if not isinstance(model, nn.Module):
            raise ConfigTypeError(f"a model must be a torch.nn.Module, got {name}")
        own = contract is None and callable(getattr(model, "train_step", None))
        if loss is not None and (own or batch_processor is not None):
            source = "train_step" if own else "batch_processor"
            raise ConfigError(
                f"{name} gets its loss from {source}; remove the separate loss"
            )
        if loss is not None and not callable(loss):
            raise ConfigTypeError(f"loss must be callable, got {type(loss).__name__}")
        self.module = model
        self.contract = contract
        self.loss = loss
        # the same two, past nn.Module's slow lookup, as each step does it
        vars(self).update(model=model, call_loss=loss)
        self.batch_processor = batch_processor
        self.model_name = name
        self.kept_in_eval: list[nn.Module] = []
        """Modules that stay in evaluation mode, such as frozen norms."""
        self.optimizer = None
        self.step_kwargs: dict[str, Any] = {}
        """What `runner.run(..., **kwargs)` was given: for the model's own step."""
        self.signature = inspect.signature(model.forward)
        self.takes_return_loss = _takes_return_loss(
            self.signature, mmcv_style=own or batch_processor is not None
        )
        self.shifts_labels = loss is None and shifts_labels(model)
        self.tensor_loss = isinstance(loss, _Loss)
        """A torch.nn loss takes a tensor: the `logits` where the output has more."""
        self.call_forms: dict[Any, Any] = {}
        """How each layout of batch is passed to `forward`, found at its first use."""
        if batch_processor is not None:
            _check_batch_processor(model, batch_processor)
        if contract is not None:
            self.run = contract.step
            if contract.stacked is not None:
                self.stacked = functools.partial(contract.stacked, self)
        elif batch_processor is not None:
            self.run = processor_step
        elif own:
            self.run = own_step
        else:
            self.run = self_loss_step if loss is None else separate_loss_step
        self.may_update = own or batch_processor is not None
        self.counts_items = not self.may_update and contract is None
        self.counts_labels = False

    def train(self, mode: bool = True) -> StepModule:
        super().train(mode)
        for module in self.kept_in_eval:
            module.eval()
        return self

    def forward(self, batch: Any, mode: str = "train") -> dict[str, Any]:
        if mode not in MODES:
            raise ConfigError(f"mode must be one of {', '.join(MODES)}, got {mode!r}")
        if mode == "generate":
            from devrun.models.generation import generate_step

            return generate_step(self, batch)
        result = self.run(self, batch, mode)
        if result["loss"] is not None and "loss" not in result["log_vars"]:
            result["log_vars"]["loss"] = result["loss"].detach()
        return result


def wrap_fp16_model(model: nn.Module) -> None:
    """Switch MMCV's decorators on: `fp16_enabled = True` where a module has it."""
    for module in model.modules():
        if hasattr(module, "fp16_enabled"):
            module.fp16_enabled = True  # type: ignore[assignment]


def _takes_return_loss(signature: inspect.Signature, *, mmcv_style: bool) -> bool:
    """Whether `forward` returns predictions when called with `return_loss=False`.

    MMCV says so to every model; one that swallows it in `**kwargs` is no exception.
    """
    parameters = signature.parameters.values()
    swallows = any(p.kind is p.VAR_KEYWORD for p in parameters)
    return "return_loss" in signature.parameters or (mmcv_style and swallows)


def _check_batch_processor(model: nn.Module, batch_processor: Any) -> None:
    if not callable(batch_processor):
        raise ConfigTypeError(
            f"batch_processor must be callable, got {type(batch_processor).__name__}"
        )
    warnings.warn(
        "batch_processor is deprecated: give the model train_step() and val_step()",
        DeprecationWarning,
        stacklevel=3,
    )
    if hasattr(model, "train_step") or hasattr(model, "val_step"):
        raise ConfigError(
            f"{type(model).__name__} has train_step or val_step, and a "
            f"batch_processor is given: remove one of the two"
        )
