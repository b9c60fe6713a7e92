"""Balanced pipelines: divides the measured blocks of a model over IPUs.

The cost of a stage is its forward floating-point operations: backward passes and
recomputation multiply them alike. Its memory, an estimate, is the parameters of its
blocks (weight, gradient, optimizer states) and their activations once, because PopTorch
recomputes inside the stages of a pipeline, and what enters it once for every
micro-batch in flight: 2 (n - s) - 1 in stage s = 0, 1, ... of n, as many as the
gradient accumulation must have at least.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

from torch import nn

from devrun.devices.ipu.measure import Block, measure
from devrun.errors import ConfigError
from devrun.models.split import StageValue, partition

IPU_MEMORY = 1472 * 624 * 1024
"""Bytes of one Mk2 IPU: 1472 tiles of 624 KiB."""
GIGA, MIB = 1e9, 2**20


@dataclass(frozen=True)
class Split:
    """A division of a model: `edges` for `apply_split`, and the `table` to print."""

    edges: list[dict[str, Any]]
    table: str
    blocks: tuple[Block, ...]
    starts: tuple[int, ...]
    """Index of the first block of each stage."""


def balance(
    model: nn.Module,
    batch: Any,
    num_ipus: int,
    *,
    optimizer_states: int = 1,
    memory_bytes: int = IPU_MEMORY,
    where: str = "split",
) -> Split:
    """The contiguous division with the least floating-point work in its largest stage.

    Among those that fit in `memory_bytes` an IPU, or among all where none fits; of
    equal ones, the one with the least memory in its fullest stage. The table says when
    memory decided.

    Args:
        model: the user's module, or a `StepModule` of it, which runs the loss too. The
            names of the edges are those of the user's module.
        batch: one micro-batch, on the host.
        optimizer_states: tensors that the optimizer keeps for every weight: 1 for
            momentum, 2 for Adam.

    Raises:
        ConfigError: fewer blocks than IPUs, or a model whose shapes depend on values.
    """
    if isinstance(num_ipus, bool) or not isinstance(num_ipus, int) or num_ipus < 1:
        raise ConfigError(f"{where}: num_ipus must be 1 or more, got {num_ipus!r}")
    blocks = measure(model, batch, at_least=num_ipus, where=where)
    if len(blocks) < num_ipus:
        names = ", ".join(block.name for block in blocks)
        raise ConfigError(
            f"{where}: auto with num_ipus: {num_ipus}, but the model has only "
            f"{len(blocks)} blocks to divide ({names}); set num_ipus to at most that"
        )
    flops = _sums([block.flops for block in blocks])
    memory = _memory(blocks, num_ipus, optimizer_states)

    def cost(_: int, i: int, j: int) -> int:
        return flops[j] - flops[i]

    free = partition(len(blocks), num_ipus, cost, memory, None) or ()
    fitting = partition(len(blocks), num_ipus, cost, memory, memory_bytes)
    starts = fitting or free
    table = _table(blocks, starts, memory, optimizer_states)
    room = f"{memory_bytes / MIB:.0f} MiB an IPU by this estimate"
    if fitting is None:
        table += (
            f"\nno division fits in {room}: take more IPUs, a smaller micro-batch or "
            "half precision if it runs out of memory"
        )
    elif (lower := largest_cost(blocks, free)) < largest_cost(blocks, starts):
        table += (
            f"\na division with at most {lower / GIGA:.4g} GFLOP does not fit in {room}"
        )
    edges = [
        {"layer_to_call": blocks[start].name, "ipu_id": ipu}
        for ipu, start in enumerate(starts)
    ]
    return Split(edges, table, tuple(blocks), starts)


def largest_cost(blocks: Sequence[Block], starts: Sequence[int]) -> int:
    """Forward floating-point operations of the stage that has most."""
    flops = _sums([block.flops for block in blocks])
    return max(flops[j] - flops[i] for i, j in pairwise((*starts, len(blocks))))


def largest_memory(
    blocks: Sequence[Block], starts: Sequence[int], optimizer_states: int = 1
) -> int:
    """Bytes of the stage that needs most, by the estimate."""
    memory = _memory(blocks, len(starts), optimizer_states)
    ends = enumerate(pairwise((*starts, len(blocks))))
    return max(memory(stage, i, j) for stage, (i, j) in ends)


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


def _table(
    blocks: Sequence[Block],
    starts: Sequence[int],
    memory: StageValue,
    optimizer_states: int,
) -> str:
    width = max(len("block"), *(len(block.name) for block in blocks))
    title = "weights+state MiB"
    lines = [f"IPU  {'block':<{width}}  GFLOP      {title}  activations MiB"]
    totals = []
    for ipu, (start, end) in enumerate(pairwise((*starts, len(blocks)))):
        stage = blocks[start:end]
        totals.append(sum(block.flops for block in stage))
        lines += [
            f"{ipu:<3}  {block.name:<{width}}  {block.flops / GIGA:<9.4g}"
            f"  {_weights(block, optimizer_states) / MIB:<{len(title)}.2f}"
            f"  {block.activation_bytes / MIB:.2f}"
            for block in stage
        ]
    mean = sum(totals) / len(totals)
    for ipu, (start, end) in enumerate(pairwise((*starts, len(blocks)))):
        lines.append(
            f"IPU {ipu}: {end - start} blocks, {totals[ipu] / GIGA:.4g} GFLOP "
            f"({totals[ipu] / mean if mean else 1:.2f} of the mean), "
            f"about {memory(ipu, start, end) / MIB:.0f} MiB"
        )
    return "\n".join(lines)
