"""What torch has to be told where weights are divided over Gaudis."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import nn


@functools.cache
def divide_linear_backward() -> None:
    """Say how `linear_backward` goes with divided operands; once a process.

    The bridge has kernels for a linear layer and its backward. Other devices take both
    apart, and torch has rules for the parts alone (2.13).
    """
    from torch.distributed.tensor import Partial, Replicate, Shard
    from torch.distributed.tensor.experimental import register_sharding

    @register_sharding(torch.ops.aten.linear_backward.default)
    def rules(inputs: Any, grad: Any, weight: Any, mask: Any) -> Any:
        """(gradients of inputs, weight, bias), (inputs, grad, weight, mask)."""
        whole, some, last = Replicate(), Partial(), Shard(inputs.ndim - 1)
        colwise = ([some, Shard(0), Shard(0)], [whole, last, Shard(0), None])
        rowwise = ([last, Shard(1), whole], [last, whole, Shard(1), None])
        found = [([whole] * 3, [whole] * 3 + [None]), colwise, rowwise]
        for dim in map(Shard, range(inputs.ndim - 1)):  # samples, or positions
            found.append(([dim, some, some], [dim, dim, whole, None]))
        return found


def sum_gradients(model: nn.Module) -> None:
    """Let sharded gradients travel as sums, since HCCL has no averages."""
    from torch.distributed.fsdp import FSDPModule

    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_force_sum_reduction_for_comms(True)
