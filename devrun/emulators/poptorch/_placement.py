"""Which IPU each operation is on, and whether the machine and the loops fit.

The number of stages is 1 plus how often the active IPU changes in the order of the
forward pass, beginning on IPU 0.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import torch

from poptorch import _machine
from poptorch._errors import Error
from poptorch._logging import logger
from poptorch._strategies import _IExecutionStrategy


class Placement:
    """The active block while a forward is captured."""

    def __init__(self, strategy: _IExecutionStrategy) -> None:
        self._strategy = strategy
        self.ipu = 0
        self.block = ""
        self.used: set[int] = set()
        self.stages = 1
        self.scoped = False
        self._closed = False
        self._begun = False

    def open(self, block: str, ipu_id: int | None) -> None:
        """Begin the block `block`."""
        current = self.ipu if self._begun else -1
        ipu = self._strategy.ipu_of(block, ipu_id, current)
        self._begun, self._closed, self.block = True, False, block
        if ipu != self.ipu:
            if self.used:
                self.stages += 1
            elif ipu != 0:
                # Nothing ran on IPU 0 yet, where every pipeline begins.
                self.stages += 1
            self.ipu = ipu

    def close(self) -> None:
        """End a block opened by `with`."""
        self.scoped, self._closed = False, True

    def note(self) -> tuple[str, int]:
        """The block and IPU of an operation that is captured now."""
        if self._closed:
            raise Error(
                "No active Block, all the ops must belong to a Block: an operation "
                "follows the end of the last `with poptorch.Block`"
            )
        self.used.add(self.ipu)
        return self.block, self.ipu


def check_machine(placement: Placement, options: Any) -> int:
    """The number of IPUs to reserve.

    Raises:
        Error: Above 64, no power of two without `autoRoundNumIPUs`, or more than the
            emulated machine has.
    """
    per_replica = max(len(placement.used), max(placement.used, default=0) + 1)
    wanted = per_replica * options.replication_factor
    if wanted > _machine.MOST_IPUS:
        raise Error(
            f"Too many IPUs requested ({wanted}). Experiments that need more than "
            f"{_machine.MOST_IPUS} IPUs need to be distributed over several processes."
        )
    if options.connection_type.name == "Never":
        return int(wanted)  # nothing is reserved
    rounded = 1 << (wanted - 1).bit_length()
    if rounded != wanted:
        text = (
            f"poptorch_cpp_error: The model specifies the use of {wanted} IPUs, "
            f"however PopTorch must reserve a minimum of {rounded} in order to allow "
            "the model to run, because PopTorch must reserve a power of 2 or maximum "
            "of 64 IPUs per process"
        )
        if not options.auto_round_num_ipus:
            raise Error(
                f"{text}. Please reconfigure your model to use a different number of "
                "IPUs or set poptorch.Options().autoRoundNumIPUs(True)."
            )
        logger.warning("%s. %d IPUs are reserved.", text, rounded)
    if rounded > _machine.ipus():
        raise Error(
            f"Failed to acquire {rounded} IPU(s): the machine has {_machine.ipus()}. "
            "Use fewer replicas or IPUs per replica, or a larger machine."
        )
    return int(rounded)


def check_loops(placement: Placement, options: Any, training: bool) -> None:
    """Refuse a pipeline that its accumulation or device iterations cannot fill."""
    if not options._execution_strategy.pipelined or placement.stages < 2:
        return
    stages = placement.stages
    if training:
        needed = 2 * stages - 1
        if options.Training.gradient_accumulation < needed:
            raise Error(
                "poptorch.Options().Training.gradientAccumulation must be greater than "
                f"or equal to the number of pipeline stages ({needed}) when using "
                "poptorch.PipelinedExecution. Please note that a model with "
                f"{stages} pipeline stages in PopTorch will have an additional "
                f"{stages - 1} stages when training. gradientAccumulation is "
                f"{options.Training.gradient_accumulation}."
            )
    elif options.device_iterations < stages:
        raise Error(
            "poptorch.Options().deviceIterations must be greater than or equal to the "
            f"number of pipeline stages ({stages}) when using "
            "poptorch.PipelinedExecution; it is "
            f"{options.device_iterations}."
        )


def memory_estimate(executor: Any) -> list[dict[str, int]]:
    """See `emulation.memory_estimate`."""
    graph = executor._executable
    if graph is None:
        raise Error("Model has not been compiled or has been destroyed.")
    home: dict[int, int] = {}
    activations: dict[int, int] = defaultdict(int)
    highest = 0
    for node in graph.tape.nodes:
        highest = max(highest, node.ipu)
        activations[node.ipu] += node.bytes
        for slot in node.reads:
            home.setdefault(slot, node.ipu)
    table = [
        {"weights": 0, "optimizer": 0, "activations": activations[ipu]}
        for ipu in range(highest + 1)
    ]
    states = executor._weights.copies_per_weight()
    for slot, tensor, trained in executor._weights.entries(graph):
        row = table[home.get(slot, 0)]
        row["weights"] += _bytes(tensor)
        # One gradient and the optimizer's own copies of each trained weight.
        row["optimizer"] += _bytes(tensor) * (1 + states) if trained else 0
    return table


def check_memory(executor: Any) -> None:
    """Raise if an estimate is above the limit that the user set."""
    limit = _machine.memory_limit()
    if limit is None:
        return
    for ipu, row in enumerate(memory_estimate(executor)):
        total = sum(row.values())
        if total > limit:
            parts = ", ".join(f"{name} {size}" for name, size in row.items())
            raise Error(
                f"Out of memory on IPU {ipu} by the emulator's estimate: {total} bytes "
                f"({parts}), limit {limit}"
            )


def _bytes(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()
