"""Two updates of a training on tensors without values, for the memory they take."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from devrun.models.recompute import checkpoint_blocks
from devrun.parallel.strategy import optimizers_in
from devrun.rehearsal.check.cuda.accounts import Accounts
from devrun.runners.training import Training
from devrun.tensors import INSIDE, batch_size_of, replaced, tensors_in


@dataclass(frozen=True)
class Use:
    """Bytes at the highest moment of each part of the second update, by kind."""

    parts: dict[str, dict[str, int]]

    @property
    def held_by(self) -> str:
        """The part with the most."""
        return max(self.parts, key=lambda part: sum(self.parts[part].values()))

    @property
    def bytes(self) -> dict[str, int]:
        return self.parts[self.held_by]

    @property
    def peak(self) -> int:
        return sum(self.bytes.values())

    def beyond(self, smaller: Use, times: float) -> Use:
        """On the line from `smaller` through this one, `times` as far again."""

        def line(part: str, kind: str, size: int) -> int:
            before = smaller.parts.get(part, {}).get(kind, 0)
            return max(size + int(times * (size - before)), 0)

        return Use(
            {
                part: {kind: line(part, kind, size) for kind, size in sizes.items()}
                for part, sizes in self.parts.items()
            }
        )


def use_of(
    training: Training,
    batch: Any,
    samples: int,
    accumulate: int,
    *,
    fake: bool,
    recompute: bool,
) -> Use:
    """The memory of an update; `training` is of no use afterwards.

    Args:
        batch: one of its batches, of any size.
        samples: of each batch.
        accumulate: batches of an update.
        fake: compute no values, so that the size does not matter. A model that looks
            at values cannot.
        recompute: as `gradient_checkpointing: true`.
    """
    runner = training.runner
    model, optimizer = runner.session.step_module, runner.optimizer
    adapter: Any = runner.adapter
    accounts = Accounts()
    if recompute:
        checkpoint_blocks(runner.model, True)
    mode: Any = nullcontext()
    if fake:
        mode = FakeTensorMode(allow_non_fake_inputs=True)
        _make_fake(model, optimizer, mode)
    for each in optimizers_in(optimizer):
        each.state.clear()
        each.zero_grad()
        as_on_gpu(each)
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.register_post_accumulate_grad_hook(
                lambda one: accounts.book([one.grad], "gradients")
            )
    model.train()
    with mode, accounts:
        accounts.book(model.parameters(), "weights")
        accounts.book(model.buffers(), "weights")
        # those of the next update are copied while this one is computed
        batches = [resized(batch, samples, fake=fake) for _ in range(2 * accumulate)]
        accounts.book(tensors_in(batches), "batches")
        parts = batches[: min(accumulate, 2)]
        for _ in range(2):
            accounts.begin()
            _update(model, optimizer, adapter.update.autocast, parts, accounts)
    return Use({part: dict(sizes) for part, sizes in accounts.peaks.items()})


def as_on_gpu(optimizer: Any) -> None:
    """Have it update lists of tensors at a time, which takes temporaries."""
    for group in optimizer.param_groups:
        if group.get("foreach", 0) is None and not group.get("fused"):
            group["foreach"] = True


def _update(
    model: Any,
    optimizer: Any,
    autocast: AbstractContextManager[Any] | None,
    batches: list[Any],
    accounts: Accounts,
) -> None:
    accounts.making = "activations"
    for part in batches:
        accounts.doing = "the forward pass"
        with autocast or nullcontext():
            loss = model(part, "train")["loss"]
        if loss is not None and loss.requires_grad:
            accounts.doing = "the backward pass"
            loss.backward()
        del loss
    accounts.doing, accounts.making = "the optimizer", "temporaries"
    for each in optimizers_in(optimizer):
        each.step()
        accounts.book(tensors_in(list(each.state.values())), "optimizer state")
        each.zero_grad()


def _make_fake(model: nn.Module, optimizer: Any, mode: FakeTensorMode) -> None:
    """Weights and buffers without values, in the model and in its optimizers."""
    made: dict[int, Any] = {}

    def fake(tensor: Tensor) -> Any:
        if id(tensor) not in made:
            one: Any = mode.from_tensor(tensor.detach())
            if isinstance(tensor, nn.Parameter):
                one = nn.Parameter(one, tensor.requires_grad)
            made[id(tensor)] = one, tensor  # which keeps its id
        return made[id(tensor)][0]

    for module in model.modules():
        for owner in (module._parameters, module._buffers):
            for name, tensor in owner.items():
                if tensor is not None:
                    owner[name] = fake(tensor)
        if isinstance(module, nn.RNNBase):
            module._init_flat_weights()  # a list of the same parameters
    for each in optimizers_in(optimizer):
        for group in each.param_groups:
            group["params"] = [fake(one) for one in group["params"]]


def resized(batch: Any, samples: int, *, fake: bool = False) -> Any:
    """`batch` with its samples repeated, or left out, until they are `samples`."""
    given = batch_size_of(batch)
    index = torch.arange(samples) % given

    def resize(part: Any, _: str) -> Any:
        if isinstance(part, Tensor):
            if not part.dim() or part.shape[0] != given:
                return part
            if fake:
                return torch.empty((samples, *part.shape[1:]), dtype=part.dtype)
            return part[index]
        if type(part) in (list, tuple) and len(part) == given and samples_in(part):
            return type(part)(part[i % given] for i in range(samples))
        return INSIDE

    def samples_in(parts: Any) -> bool:
        """Whether it has a part for each sample, and not one for each input."""
        tensors = [one for one in parts if isinstance(one, Tensor)]
        return not any(one.dim() and one.shape[0] == given for one in tensors)

    return replaced(resize, batch)
