"""`FSDP`: weights, gradients and optimizer state divided over the processes.

torch's `fully_shard`: a block is gathered before it runs and given up after it; its
gradients are summed up where they are kept.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    FSDPModule,
    MixedPrecisionPolicy,
    fully_shard,
)
from torch.nn.modules.batchnorm import _NormBase

from devrun.dist import all_reduce_max, allreduce_grads, broadcast_tensors
from devrun.errors import ConfigError, DataError, nearest
from devrun.models.blocks import blocks_of
from devrun.models.steps import self_loss_step, separate_loss_step
from devrun.parallel import sharding
from devrun.parallel.strategy import (
    Strategy,
    follow,
    obstacles,
    optimizers_in,
    refuse_combined,
    share_weights,
)
from devrun.step import UpdatePolicy

logger = logging.getLogger("devrun")

_NONE: Any = object()


class FSDP(Strategy):
    """The model's blocks, one by one, then what is left."""

    divided = True
    casts = True

    _low = False
    """Whether the weights are gathered, and the forward pass runs, in bf16."""
    _exchanges = True
    _orders: Mapping[Tensor, Tensor]
    _buffers: Sequence[Tensor] = ()
    _modules: Sequence[FSDPModule] = ()
    _numbers: Sequence[nn.Parameter] = ()
    """Parameters of no dimension, such as a learnt temperature: all have them whole."""

    def check(self, policy: UpdatePolicy, model: Any, optimizer: Any) -> None:
        refuse_combined(
            self._name(),
            {**obstacles(policy, model, optimizer), "sync_bn": self.options.sync_bn},
        )
        self._low = policy.precision == "bf16"

    def apply(self, model: Any, optimizer: Any, *, by_hand: bool = False) -> Any:
        share_weights(model)
        before = dict(model.named_parameters())
        orders = self._divide(model)
        after = dict(model.named_parameters())
        follow(optimizer, {old: after[name] for name, old in before.items()})
        self._finish(model, optimizer, orders)
        return model

    def micro_batches(self, model: Any, parts: Sequence[Any]) -> Iterator[Any]:
        if self._buffers:  # as DDP: every update begins with those of rank 0
            broadcast_tensors(self._buffers)
        for number, part in enumerate(parts, 1):
            last = number == len(parts)
            if last is not self._exchanges:
                self._exchanges = last
                for module in self._modules:
                    module.set_requires_gradient_sync(last, recurse=False)
            yield part

    def average(self, model: Any) -> None:
        if self._numbers:
            allreduce_grads(self._numbers)

    def in_step(
        self, batches: Iterable[Any], idle: Callable[[Any], Any]
    ) -> Iterator[Any]:
        """A rank whose share is over repeats its last batch until all are done."""
        iterator = iter(batches)
        following = batch = next(iterator, _NONE)
        some = all_reduce_max(float(batch is not _NONE))
        if some and all_reduce_max(float(batch is _NONE)):
            raise DataError(
                "a process has no sample of the evaluation set: "
                f"{self._name()} needs at least one for each of the "
                f"{self.mesh.data_size} that read it"
            )
        while all_reduce_max(float(following is not _NONE)):
            if following is _NONE:
                idle(batch)
                continue
            batch = following
            yield batch
            following = next(iterator, _NONE)

    def after_eval(self) -> None:
        if self.options.reshard is not True:
            for module in self._modules:
                module.reshard()

    def clip_function(self, policy: UpdatePolicy) -> Any:
        return sharding.clip_function(policy)

    def largest_gradient(self) -> Any:
        def measure(optimizer: Any) -> Tensor | None:
            grads = sharding.gradients_of(optimizer)
            return sharding.total_norm(grads, float("inf")) if grads else None

        return measure

    def model_state(self, state: dict[str, Any], *, full: bool) -> dict[str, Any]:
        return {name: self._kept(name, value, full) for name, value in state.items()}

    def optimizer_state(self, tree: dict[str, Any], *, full: bool) -> dict[str, Any]:
        state = {
            name: {key: self._kept(name, value, full) for key, value in entries.items()}
            for name, entries in tree["state"].items()
        }
        return {**tree, "state": state}

    def take_optimizer_state(self, model: nn.Module, optimizer: Any) -> None:
        for each in optimizers_in(optimizer):
            sharding.divide_state(each, self._orders)

    def _name(self) -> str:
        return "parallel: type fsdp"

    def _finish(self, step: Any, optimizer: Any, orders: Mapping[str, Tensor]) -> None:
        """`orders`: rows of parameters, by their names in the user's module."""
        user = step.module
        named = dict(user.named_parameters())
        self._names = orders
        if orders:  # for copies of the weights, such as their average
            user.row_orders = orders
        self._orders = {named[name]: order for name, order in orders.items()}
        self._modules = [m for m in step.modules() if isinstance(m, FSDPModule)]
        if self.options.broadcast_buffers is not False:
            self._buffers = list(step.buffers())
        sharding.divide_what_is_loaded(step, self._orders)
        self.take_optimizer_state(step, optimizer)

    def _kept(self, name: str, value: Any, full: bool) -> Any:
        # rows in an order of their own mean nothing to whoever reads the parts
        order = self._names.get(name)
        return sharding.whole(value, order) if full or order is not None else value

    def _divide(self, step: Any) -> Mapping[str, Tensor]:
        """Spread the weights; the new order of rows, where a parameter has one."""
        self._shard(step)
        return {}

    def _shard(self, step: Any) -> None:
        common: dict[str, Any] = {
            "mesh": self.mesh.data,
            "reshard_after_forward": self.options.reshard,
        }
        self._numbers = [p for p in step.parameters() if p.dim() == 0]
        common["ignored_params"] = set(self._numbers)
        if self.options.offload:
            common["offload_policy"] = CPUOffloadPolicy(pin_memory=self.pins)
        # where the step is all that the step's forward does, it is the root, and the
        # loss stays out of it in fp32; a train_step has weights of its own to gather
        plain = step.run in (self_loss_step, separate_loss_step)
        outside = {id(p) for p in step.parameters()} - {
            id(p) for p in step.module.parameters()
        }
        root = step.module if plain and not outside else step
        units = units_of(step.module, self.options.wrap)
        logger.info(
            "parallel: %s; %d modules are gathered one by one, in %s",
            self.mesh.describe(),
            len(units),
            "bf16, gradients summed in fp32" if self._low else "fp32",
        )
        for unit in [*units, root]:
            precision = MixedPrecisionPolicy()
            if self._low:
                _shard_norms(unit, common)
                precision = MixedPrecisionPolicy(
                    param_dtype=torch.bfloat16,
                    reduce_dtype=torch.float32,
                    output_dtype=torch.float32 if unit is root else None,
                )
            fully_shard(unit, mp_policy=precision, **common)


def units_of(model: nn.Module, wrap: str | Sequence[str] | None) -> list[nn.Module]:
    """The modules of `model` that `wrap` names, inner ones first; never the model.

    Args:
        wrap: class names; None for what the model names in `fsdp_blocks` (or Hugging
            Face's `_no_split_modules`), else its numbered blocks.

    Raises:
        ConfigError: a name that no module has.
    """
    inside = [part for part in model.modules() if part is not model]
    known = dict.fromkeys(type(part).__name__ for part in inside)
    names = [wrap] if isinstance(wrap, str) else list(wrap or ())
    for name in names:
        if name not in known:
            raise ConfigError(
                f"parallel: wrap names {name!r}, and {type(model).__name__} has no "
                f"module of that class; {nearest(name, known)}",
                key="wrap",
            )
    for attribute in ("fsdp_blocks", "_no_split_modules"):
        own = getattr(model, attribute, None) or ()
        names = names or [name for name in own if name in known]
    if not names:
        return [block for _, block in blocks_of(model)]
    return [part for part in inside if type(part).__name__ in names][::-1]


def _shard_norms(unit: nn.Module, common: Mapping[str, Any]) -> None:
    """Batch norms of `unit` as a group of their own, in fp32 as their statistics."""
    norms: list[nn.Module] = [
        part
        for part in unit.modules()
        if isinstance(part, _NormBase)
        and not isinstance(part, FSDPModule)
        and part is not unit
        and part.affine
    ]
    if norms:
        precision = MixedPrecisionPolicy(
            reduce_dtype=torch.float32, cast_forward_inputs=False
        )
        fully_shard(norms, mp_policy=precision, **common)
