"""The memory of an update, by torch's own tracker, on tensors without values.

Nothing needs the device: the tracker sums the storages that would be alive, by what
they are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from devrun.models.recompute import checkpoint_blocks
from devrun.parallel.strategy import optimizers_in
from devrun.probes.probe import Training
from devrun.tensors import INSIDE, batch_size_of, local_of, nbytes, replaced, tensors_in

CONTEXT = 512 << 20
"""Bytes for CUDA's context and its libraries."""
SHARE = 0.06
"""Of the peak, for convolution workspaces and the gaps between blocks: convolutions
took 3.7 to 5.2% more where they were measured on a CPU."""
PASSES, OPTIMIZER = "the forward and backward pass", "the optimizer"
_KINDS = {
    "Parameter": "weights",
    "Sharded Param": "weights",
    "Buffer": "weights",
    "Gradient": "gradients",
    "Sharded Grad": "gradients",
    "Optstate": "optimizer state",
    "OptState": "optimizer state",
    "Activation": "activations",
    "Temp": "activations",
    "Inputs": "batches",
    "Other": "batches",
}
"""What torch's trackers call it; all else is of gathered blocks."""


@dataclass(frozen=True)
class Use:
    """Bytes of the second update.

    Attributes:
        parts: by kind at the highest moment of each part.
        kept: weights, gradients and optimizer state, in whole.
    """

    parts: dict[str, dict[str, int]]
    kept: dict[str, int]

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


class Numbers(TorchDispatchMode):
    """Gives some where one is read (`loss.item()`); sizes seldom depend on it."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if func is torch.ops.aten._local_scalar_dense.default:
            if isinstance(args[0], FakeTensor):
                return 1.0 if args[0].is_floating_point() else 1
        return func(*args, **(kwargs or {}))


def update_memory(
    model: nn.Module,
    optimizers: Sequence[Any],
    batches: Sequence[Any],
    *,
    autocast: AbstractContextManager[Any] | None = None,
    inside: FakeTensorMode,
    waiting: Sequence[Any] = (),
) -> Use:
    """The memory of a whole update, after one in which the optimizer makes its state.

    The model is of no use afterwards.

    Args:
        model: gives the loss of a batch, such as a `StepModule`; or its blocks are
            sharded by FSDP.
        batches: micro-batches of an update.
        inside: that of the tensors, entered for each part of an update.
        waiting: batches that are there and not yet used.
    """
    tensors = tuple(tensors_in([*batches, *waiting]))
    tracker = _tracker(model, optimizers, tensors)
    parts, kept = {}, {}
    for _ in range(2):
        with inside, Numbers(), tracker:
            for batch in batches:
                with autocast or nullcontext():
                    loss = model(batch, "train")["loss"]
                if loss is not None and loss.requires_grad:
                    loss.backward()
                del loss
                tracker.reset_mod_stats()
        parts[PASSES] = _peak(tracker)
        kept["gradients"] = size_of(p.grad for p in model.parameters())
        with inside, Numbers(), tracker:
            for each in optimizers:
                each.step()
                each.zero_grad()
        parts[OPTIMIZER] = _peak(tracker)
    kept["weights"] = size_of([*model.parameters(), *model.buffers()])
    states = [list(each.state.values()) for each in optimizers]
    kept["optimizer state"] = size_of(tensors_in(states))
    # what the optimizer makes on its way counts as its state
    made, most = parts[OPTIMIZER].get("optimizer state", 0), kept["optimizer state"]
    if made > most:
        parts[OPTIMIZER] |= {"optimizer state": most, "temporaries": made - most}
    return Use(parts, kept)


def _tracker(model: nn.Module, optimizers: Sequence[Any], tensors: Any) -> Any:
    """What sees the memory of the model's steps, sharded or not.

    Raises:
        RuntimeError: this torch has none.
    """
    try:
        from torch.distributed._tools.fsdp2_mem_tracker import FSDPMemTracker
        from torch.distributed._tools.mem_tracker import MemTracker
        from torch.distributed.fsdp import FSDPModule
    except ImportError as error:
        raise RuntimeError("tracking memory needs torch 2.6 or later") from error
    for root in model.modules():
        if isinstance(root, FSDPModule):
            sharded = FSDPMemTracker(root, *optimizers)
            sharded.track_inputs(tensors)
            return sharded
    _freeze(model)
    tracker = MemTracker()
    tracker.track_external(model, *optimizers, *tensors)
    return tracker


def _freeze(model: nn.Module) -> None:
    """Make frozen weights buffers, since the tracker asks each weight for gradients."""
    for module in model.modules():
        for name, weight in list(module.named_parameters(recurse=False)):
            if not weight.requires_grad:
                delattr(module, name)
                module.register_buffer(name, weight.detach())


def _peak(tracker: Any) -> dict[str, int]:
    """Bytes by kind when most was there, since it was entered."""
    found: Counter[str] = Counter()
    for sizes in tracker.get_tracker_snapshot("peak").values():
        for key, size in sizes.items():
            name = getattr(key, "value", key)
            if name != "Total":
                found[_KINDS.get(name, "gathered")] += size
    return dict(found)


def size_of(tensors: Iterable[Any]) -> int:
    """Bytes that this rank has of them."""
    return sum(nbytes(local_of(one)) for one in tensors if isinstance(one, Tensor))


def memory_of(
    training: Training, batch: Any, samples: int, accumulate: int, *, recompute: bool
) -> Use:
    """The memory of an update without values; `training` is of no use afterwards.

    Args:
        batch: one of its batches, of any size.
        samples: of each batch.
        accumulate: batches of an update.
        recompute: as `gradient_checkpointing: true`.
    """
    runner = training.runner
    model, optimizers = runner.session.step_module, optimizers_in(runner.optimizer)
    adapter: Any = runner.adapter
    if recompute:
        checkpoint_blocks(runner.model, True)
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    _make_fake(model, optimizers, mode)
    for each in optimizers:
        each.state.clear()
        each.zero_grad()
        as_on_gpu(each)
    model.train()
    with mode:
        # those of the next update are copied while this one is computed
        batches = [resized(batch, samples) for _ in range(2 * accumulate)]
    used = min(accumulate, 2)
    return update_memory(
        model,
        optimizers,
        batches[:used],
        autocast=adapter.update.autocast,
        inside=mode,
        waiting=batches[used:],
    )


def as_on_gpu(optimizer: Any) -> None:
    """Have it update lists of tensors at a time, which takes temporaries."""
    for group in optimizer.param_groups:
        if group.get("foreach", 0) is None and not group.get("fused"):
            group["foreach"] = True


def _make_fake(
    model: nn.Module, optimizers: Sequence[Any], mode: FakeTensorMode
) -> None:
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
    for each in optimizers:
        for group in each.param_groups:
            group["params"] = [fake(one) for one in group["params"]]


def resized(batch: Any, samples: int) -> Any:
    """`batch` without values, of as many `samples`."""
    given = batch_size_of(batch)

    def resize(part: Any, _: str) -> Any:
        if isinstance(part, Tensor):
            if not part.dim() or part.shape[0] != given:
                return part
            return torch.empty((samples, *part.shape[1:]), dtype=part.dtype)
        if type(part) in (list, tuple) and len(part) == given and samples_in(part):
            return type(part)(part[i % given] for i in range(samples))
        return INSIDE

    def samples_in(parts: Any) -> bool:
        """Whether it has a part for each sample, and not one for each input."""
        tensors = [one for one in parts if isinstance(one, Tensor)]
        return not any(one.dim() and one.shape[0] == given for one in tensors)

    return replaced(resize, batch)


def needed(peak: float) -> int:
    """Bytes of a GPU for tensors of `peak`."""
    return int(peak * (1 + SHARE)) + CONTEXT
