"""Balanced pipelines: what each block of a model costs, and its division over IPUs.

One micro-batch goes through a copy of the model whose tensors have shapes but no values
(`torch._subclasses.FakeTensorMode`), so nothing is computed and nothing of the model
changes. Counted for every block, that is for all that runs from its call to the call of
the next one:

- forward floating-point operations by `torch.utils.flop_counter` (those of matrix
  products and convolutions), attention as its products, as IPUs compute it;
- bytes that autograd keeps for the backward pass
  (`torch.autograd.graph.saved_tensors_hooks`), each storage once;
- bytes of the parameters, and of what the block is called with.

The cost of a stage is its forward operations: backward passes and recomputation
multiply them alike. Its memory, an estimate, is the parameters of its blocks (weight,
gradient, optimizer states) and their activations once, because PopTorch recomputes
inside the stages of a pipeline, and what enters it once for every micro-batch in
flight: 2 (n - s) - 1 in stage s = 0, 1, ... of n, as many as the gradient accumulation
must have at least.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Callable

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeCopyMode, FakeTensor, FakeTensorMode
from torch.autograd.graph import saved_tensors_hooks
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from devrun.errors import ConfigError, DevrunError
from devrun.models.step_module import StepModule
from devrun.text import joined

IPU_MEMORY = 1472 * 624 * 1024
"""Bytes of one Mk2 IPU: 1472 tiles of 624 KiB."""
StageValue = Callable[[int, int, int], int]
"""(stage, first block, block after the last) -> a cost of that stage."""


@dataclass(frozen=True)
class Split:
    """A division of a model: `edges` are those of a config."""

    edges: list[dict[str, Any]]
    blocks: tuple[Block, ...]
    starts: tuple[int, ...]
    """Index of the first block of each stage."""
    fits: bool
    """Whether there is room for it, by the estimate."""


def balance(
    model: nn.Module,
    batch: Any,
    num_ipus: int,
    *,
    optimizer_states: int = 1,
    memory_bytes: int = IPU_MEMORY,
) -> Split:
    """The contiguous division with the least floating-point work in its largest stage.

    Among those that fit in `memory_bytes` an IPU, or among all where none fits; of
    equal ones, the one with the least memory in its fullest stage.

    Args:
        model: the user's module, or a `StepModule` of it, which runs the loss too. The
            names of the edges are those of the user's module.
        batch: one micro-batch, on the host.
        optimizer_states: tensors that the optimizer keeps for every weight: 1 for
            momentum, 2 for Adam.

    Raises:
        ConfigError: fewer blocks than IPUs, or a model whose shapes depend on values.
    """
    blocks = measure(model, batch, at_least=num_ipus)
    if len(blocks) < num_ipus:
        names = ", ".join(block.name for block in blocks)
        raise ConfigError(
            f"num_ipus is {num_ipus}, but the model has only {len(blocks)} blocks to "
            f"divide ({names}); set num_ipus to at most that"
        )
    flops = _sums([block.flops for block in blocks])
    memory = _memory(blocks, num_ipus, optimizer_states)

    def cost(_: int, i: int, j: int) -> int:
        return flops[j] - flops[i]

    free = partition(len(blocks), num_ipus, cost, memory, None) or ()
    fitting = partition(len(blocks), num_ipus, cost, memory, memory_bytes)
    starts = fitting or free
    edges = [
        {"layer_to_call": blocks[start].name, "ipu_id": ipu}
        for ipu, start in enumerate(starts)
    ]
    return Split(edges, tuple(blocks), starts, fitting is not None)


def partition(
    num_blocks: int,
    num_stages: int,
    cost: StageValue,
    memory: StageValue,
    limit: int | None,
) -> tuple[int, ...] | None:
    """First blocks of the stages; None where no division is within the limit.

    Exact: dynamic programming over (stage, block), once for the least largest cost and
    once more for the least largest memory at that cost.
    """

    def allowed(s: int, i: int, j: int) -> bool:
        return limit is None or memory(s, i, j) <= limit

    least = _bottleneck(num_blocks, num_stages, cost, allowed)
    if least is None:
        return None
    most = least[0]
    best = _bottleneck(
        num_blocks,
        num_stages,
        memory,
        lambda s, i, j: cost(s, i, j) <= most and allowed(s, i, j),
    )
    return (best or least)[1]


def _bottleneck(
    num_blocks: int,
    num_stages: int,
    value: StageValue,
    allowed: Callable[[int, int, int], bool],
) -> tuple[int, tuple[int, ...]] | None:
    """Least possible largest value of a stage, and the stages' first blocks.

    Every stage has a block at least; None when no division is allowed.
    """
    # best[j]: the same for the first j blocks in as many stages as were added so far
    best: dict[int, tuple[int, tuple[int, ...]]] = {0: (0, ())}
    for stage in range(num_stages):
        longer: dict[int, tuple[int, tuple[int, ...]]] = {}
        for end in range(stage + 1, num_blocks - (num_stages - stage - 1) + 1):
            for start, (most, starts) in best.items():
                if start < end and allowed(stage, start, end):
                    here = max(most, value(stage, start, end))
                    if end not in longer or here < longer[end][0]:
                        longer[end] = here, (*starts, start)
        best = longer
    return best.get(num_blocks)


def largest_cost(blocks: Sequence[Block], starts: Sequence[int]) -> int:
    """Forward floating-point operations of the stage that has most."""
    flops = _sums([block.flops for block in blocks])
    ends = (*starts[1:], len(blocks))
    return max(flops[j] - flops[i] for i, j in zip(starts, ends))


def _sums(values: Sequence[int]) -> list[int]:
    """Prefix sums: blocks i to j-1 have `sums[j] - sums[i]`."""
    return [0, *accumulate(values)]


def _memory(
    blocks: Sequence[Block], num_stages: int, optimizer_states: int
) -> StageValue:
    sums = _sums([b.activation_bytes + _weights(b, optimizer_states) for b in blocks])

    def memory(stage: int, start: int, end: int) -> int:
        in_flight = 2 * (num_stages - stage) - 1
        return sums[end] - sums[start] + in_flight * blocks[start].input_bytes

    return memory


def _weights(block: Block, optimizer_states: int) -> int:
    """Bytes of weights, gradients and optimizer states."""
    return block.parameter_bytes + block.trained_bytes * (1 + optimizer_states)


@dataclass(frozen=True)
class Block:
    """What runs from the call of the layer `name` to the call of the next block's."""

    name: str
    flops: int
    activation_bytes: int
    parameter_bytes: int
    trained_bytes: int
    """Of the parameters that are trained."""
    input_bytes: int


def measure(
    model: nn.Module,
    batch: Any,
    *,
    at_least: int = 1,
    names: Sequence[str] = (),
) -> list[Block]:
    """The blocks of a model in the order of their calls; `at_least` so many if it can.

    Blocks are the layers of its chains (Sequential, ModuleList) and what is called
    between them. A layer that is called twice is no block of its own.

    Args:
        model: the user's module, or a `StepModule` of it, which runs the loss too.
        batch: one micro-batch, on the host.
        names: the first layers of the blocks, where they are chosen already.

    Raises:
        ConfigError: the model cannot be run without values.
    """
    timeline = _run(model, batch)
    if names:
        called = [name for name in names if name in timeline.calls]
        return _blocks(timeline, _in_order(timeline, called))
    names = _in_order(timeline, _inside(timeline, ""))
    while len(names) < at_least:
        wider = _expand_largest(timeline, names)
        if wider is None:
            break
        names = wider
    return _blocks(timeline, names)


@dataclass
class _Call:
    """A module at its first call, with what had been counted until then."""

    flops: int
    activation_bytes: int
    input_bytes: int
    times: int = 1


class _Timeline:
    """Counts operations and kept bytes while a model runs, by module called."""

    def __init__(self, root: nn.Module) -> None:
        self.root = root
        self.flops = FlopCounterMode(display=False)
        self.kept_bytes = 0
        self.calls: dict[str, _Call] = {}
        held = (*root.parameters(), *root.buffers())
        # storages are kept, or another one could come to have the same address
        self._seen = {s._cdata: s for s in (t.untyped_storage() for t in held)}
        for name, module in root.named_modules():
            module.register_forward_pre_hook(self._hook(name), with_kwargs=True)

    def keep(self, tensor: Tensor) -> Tensor:
        """Called by autograd with what the backward pass will read."""
        storage = tensor.untyped_storage()
        if storage._cdata not in self._seen:
            self._seen[storage._cdata] = storage
            self.kept_bytes += storage.nbytes()
        return tensor

    def _hook(self, name: str) -> Callable[[nn.Module, Any, Any], None]:
        def called(module: nn.Module, args: Any, kwargs: Any) -> None:
            if name in self.calls:
                self.calls[name].times += 1
                return
            tensors = [t for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)]
            size = sum(t.numel() * t.element_size() for t in tensors)
            operations = self.flops.get_total_flops()
            self.calls[name] = _Call(operations, self.kept_bytes, size)

        return called


class _Numbers(TorchDispatchMode):
    """Gives numbers that a model reads (`loss.item()`); sizes do not depend on them."""

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if func is torch.ops.aten._local_scalar_dense.default:
            if isinstance(args[0], FakeTensor):
                return 1.0 if args[0].is_floating_point() else 1
        return func(*args, **(kwargs or {}))


def _run(model: nn.Module, batch: Any) -> _Timeline:
    step = model if isinstance(model, StepModule) else StepModule(model)
    fake = FakeTensorMode(allow_non_fake_inputs=True)
    try:
        with fake, FakeCopyMode(fake):
            twin = copy.deepcopy(step).train()
        timeline = _Timeline(twin.module)
        numbers, sdpa = _Numbers(), sdpa_kernel(SDPBackend.MATH)
        kept = saved_tensors_hooks(timeline.keep, lambda kept: kept)
        with fake, timeline.flops, numbers, sdpa, kept, torch.enable_grad():
            twin(batch, "train" if step is model else "predict")
    except DevrunError:
        raise
    except Exception as error:
        cause = joined(error)[:200]
        raise ConfigError(
            f"{step.model_name} cannot be followed without values "
            f"({type(error).__name__}: {cause})"
        ) from error
    return timeline


def _in_order(timeline: _Timeline, names: list[str]) -> list[str]:
    place = {name: index for index, name in enumerate(timeline.calls)}
    return sorted(names, key=place.__getitem__)


def _inside(timeline: _Timeline, name: str) -> list[str]:
    """The blocks in the module `name`, which is itself divided."""
    found: list[str] = []
    prefix = f"{name}." if name else ""
    for child_name, child in timeline.root.get_submodule(name).named_children():
        full = prefix + child_name
        call = timeline.calls.get(full)
        if call is None or (call.times == 1 and _is_divided(child)):
            found += _inside(timeline, full)  # a list of layers is not called itself
        elif call.times == 1:
            found.append(full)
    return found


def _is_divided(module: nn.Module) -> bool:
    """Whether a module is a chain, or has a chain of equal layers in it."""
    return isinstance(module, nn.Sequential) or any(
        isinstance(part, (nn.Sequential, nn.ModuleList, nn.ModuleDict))
        and len(part) > 1
        and len({type(layer) for layer in part.children()}) == 1
        for part in module.modules()
    )


def _expand_largest(timeline: _Timeline, names: list[str]) -> list[str] | None:
    """The block with most operations that has blocks in it, divided; None: no such."""
    for block in sorted(_blocks(timeline, names), key=lambda block: -block.flops):
        inside = _inside(timeline, block.name)
        if len(inside) > 1:
            rest = [name for name in names if name != block.name]
            return _in_order(timeline, rest + inside)
    return None


def _blocks(timeline: _Timeline, names: list[str]) -> list[Block]:
    calls = [timeline.calls[name] for name in names]
    flops = [0, *(call.flops for call in calls[1:]), timeline.flops.get_total_flops()]
    kept = [0, *(call.activation_bytes for call in calls[1:]), timeline.kept_bytes]
    parameters = _parameter_bytes(timeline, names)
    return [
        Block(
            name=name,
            flops=flops[index + 1] - flops[index],
            activation_bytes=kept[index + 1] - kept[index],
            parameter_bytes=parameters[index][0],
            trained_bytes=parameters[index][1],
            input_bytes=calls[index].input_bytes,
        )
        for index, name in enumerate(names)
    ]


def _parameter_bytes(timeline: _Timeline, names: list[str]) -> list[list[int]]:
    """[all, trained] for each block: a parameter is where its module is called first.

    One of a module that is never called counts where the module around it is called.
    """
    place = {name: index for index, name in enumerate(timeline.calls)}
    begins = [place[name] for name in names]
    owners = []
    for name, module in timeline.root.named_modules():
        while name not in place and name:
            name = name.rpartition(".")[0]
        owners.append((place.get(name, 0), module))
    sizes = [[0, 0] for _ in names]
    seen: set[int] = set()
    for at, module in sorted(owners, key=lambda owner: owner[0]):
        block = max((i for i, begin in enumerate(begins) if begin <= at), default=0)
        for parameter in module.parameters(recurse=False):
            if id(parameter) not in seen:
                seen.add(id(parameter))
                size = parameter.numel() * parameter.element_size()
                sizes[block][0] += size
                sizes[block][1] += size if parameter.requires_grad else 0
    return sizes
