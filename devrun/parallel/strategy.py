"""`Strategy`: the verbs by which an adapter trains a model on several processes."""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer

from devrun.dist import broadcast_tensors
from devrun.errors import UnsupportedFeatureError
from devrun.parallel.mesh import Mesh
from devrun.parallel.options import ParallelOptions
from devrun.step import UpdatePolicy
from devrun.torch_features import needs

logger = logging.getLogger("devrun")


class Strategy:
    """One process: nothing is divided, and nothing exchanged.

    Args:
        device: where the weights are, a `torch.device`.
        defaults: of DistributedDataParallel on this device.
        pins: whether copies to it from the host want pinned memory.
        rng: gives and takes back the random state of the device.
    """

    divided = False
    """Whether weights are spread over processes: each forward pass is then one of
    all, and a tensor of the model is only a part of a weight."""
    casts: bool = False
    """Whether it runs the forward pass in the precision of the policy by itself."""

    def __init__(
        self,
        options: ParallelOptions | None = None,
        mesh: Mesh | None = None,
        device: Any = None,
        defaults: Mapping[str, Any] | None = None,
        *,
        pins: bool = False,
        rng: Any = None,
    ) -> None:
        self.options = options or ParallelOptions()
        self.mesh = mesh or Mesh()
        self.device = device
        self.defaults = defaults or {}
        self.pins, self.rng = pins, rng

    def check(self, policy: UpdatePolicy, model: Any, optimizer: Any) -> None:
        """Refuse what this cannot do, before anything is placed."""
        if self.options.sync_bn:
            logger.info("parallel: sync_bn changes nothing with one process")

    def apply(self, model: Any, optimizer: Any, *, by_hand: bool = False) -> Any:
        """Divide or wrap `model`, which is on its device; what to call from now on.

        Parameters of the optimizer follow by name. `by_hand`: gradients must not be
        exchanged during a backward pass.
        """
        return model

    def begin(self) -> None:
        """Called before a forward pass of training; may be called again."""

    def micro_batches(self, model: Any, parts: Sequence[Any]) -> Iterable[Any]:
        """`parts` in turn; gradients are exchanged in the last backward only."""
        return parts

    def average(self, model: Any) -> None:
        """Average the gradients over the processes, where nothing did so far."""

    def in_step(
        self, batches: Iterable[Any], idle: Callable[[Any], Any]
    ) -> Iterable[Any]:
        """The batches of an evaluation; `idle` runs a step whose result is dropped."""
        return batches

    def after_eval(self) -> None:
        """Called when a step without gradients is over."""

    def clip_function(self, policy: UpdatePolicy) -> Any:
        """What clips gradients that are spread; None leaves it to the adapter."""
        return None

    def largest_gradient(self) -> Any:
        """What measures them, as `clip_function`."""
        return None

    def model_state(self, state: dict[str, Any], *, full: bool) -> dict[str, Any]:
        """`state`, or if it is to be `full`, as one process would have it.

        All processes must call it together.
        """
        return state

    def optimizer_state(self, tree: dict[str, Any], *, full: bool) -> dict[str, Any]:
        """As `model_state`, of what `optimizer_state_by_name` gave."""
        return tree

    def take_optimizer_state(self, model: nn.Module, optimizer: Any) -> None:
        """Divide the whole state that the optimizer was given."""


def obstacles(
    policy: UpdatePolicy, model: nn.Module, optimizer: Any
) -> dict[str, bool]:
    """What no strategy that spreads weights can do -> whether it was asked for."""
    return {
        "an optimizer hook of your own, or a train_step that updates the weights "
        "itself": policy.owner in ("hook", "model"),
        "several optimizers": isinstance(optimizer, Mapping),
        "an optimizer that needs a closure (LBFGS)": isinstance(
            optimizer, torch.optim.LBFGS
        ),
        "micro_batch: auto, as a process that runs out of memory leaves the others "
        "waiting for its part; give a number": policy.micro_batch == "auto",
        f"precision {policy.precision}; use bf16 or fp32": policy.precision
        not in ("fp32", "bf16"),
        "parameters that take their shape from the first batch": any(
            map(is_lazy, model.parameters())
        ),
    }


def refuse_combined(what: str, reasons: Mapping[str, bool]) -> None:
    """Refuse the first of `reasons` that holds.

    Raises:
        UnsupportedFeatureError: naming `what`, and the reason.
    """
    for reason, wrong in reasons.items():
        if wrong:
            raise UnsupportedFeatureError(
                f"{what} cannot be combined with {reason}", key="parallel"
            )


def optimizers_in(optimizer: Any) -> list[Optimizer]:
    """The optimizers in what a runner calls `optimizer`: one, a dict, or None."""
    if optimizer is None:
        return []
    return list(optimizer.values()) if isinstance(optimizer, Mapping) else [optimizer]


def follow(optimizer: Any, moved: Mapping[Tensor, Tensor]) -> None:
    """Groups and state of `optimizer` (or a dict of them) go to new parameters."""
    for each in optimizers_in(optimizer):
        for group in each.param_groups:
            group["params"][:] = [moved.get(param, param) for param in group["params"]]
        for old in [param for param in each.state if param in moved]:
            each.state[moved[old]] = each.state.pop(old)


def share_weights(model: nn.Module) -> None:
    """Give every rank the weights and buffers of rank 0, as DDP does when it wraps."""
    broadcast_tensors([*model.parameters(), *model.buffers()])


_FILES = {"DDP": "ddp", "FSDP": "fsdp", "TensorParallel": "tensor"}


def strategy_for(
    options: ParallelOptions, mesh: Mesh, *device: Any, **how: Any
) -> Strategy:
    """The strategy that fits the mesh; only what is used is imported."""
    name = "TensorParallel" if mesh.tensor_size > 1 else mesh.type.upper()
    file = _FILES.get(name)
    kind: Any = Strategy
    if file not in (None, "ddp"):
        needs("2.9", "dividing weights over processes", "parallel")
    if file is not None:
        kind = getattr(importlib.import_module(f"devrun.parallel.{file}"), name)
    made: Strategy = kind(options, mesh, *device, **how)
    return made
