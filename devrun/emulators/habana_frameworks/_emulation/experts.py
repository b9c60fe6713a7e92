"""Gated experts, `torch.ops.hpu.mixture_of_experts`, of shapes no routing changes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from habana_frameworks._emulation.custom import operator
from habana_frameworks._emulation.support import paired

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "relu": F.relu,
    "silu": F.silu,
}
_INPUTS = "Tensor hidden_states, Tensor expert_routing_table, Tensor router_weights"
_CHOICE = "bool permuted_weights, str activation, int experts_min, int experts_max"
_THREE = "Tensor[] w1, Tensor[] w2, Tensor[] w3"


def _mix(
    hidden: Tensor, table: Tensor, weights: Tensor, experts: Any, choice: Any
) -> tuple[Tensor, Tensor]:
    """Each token's weighted sum over its experts, and each expert's greatest gate.

    `hidden` (tokens, width), `table` and `weights` (tokens, experts of a token);
    of each expert first and gate (width, inner) and last (inner, width), transposed
    where permuted. Experts outside experts_min..experts_max are another device's.
    """
    permuted, activation, first_expert, last_expert = choice
    total = torch.zeros_like(hidden)
    greatest = []
    for number, matrices in enumerate(experts):
        first, gate, last = [m.t() if permuted else m for m in matrices]
        gated = ACTIVATIONS[activation](hidden @ first) * (hidden @ gate)
        greatest.append(gated.amax().float())
        if first_expert <= number + first_expert <= last_expert:
            mine = torch.where(table == number + first_expert, weights, 0).sum(-1)
            total = total + (gated @ last) * mine.to(hidden.dtype).unsqueeze(-1)
    return total, torch.stack(greatest)


def _define(overload: str, fused: bool, measured: bool) -> None:
    """One form of the operator: of two or three matrices, with gates or without."""
    lists = "Tensor[] w12, Tensor[] w3" if fused else _THREE
    more, result = ("", "Tensor")
    if measured:
        more, result = ", bool measurement_mode", "(Tensor, Tensor)"
    name = f"mixture_of_experts{overload}"

    @operator(f"{name}({_INPUTS}, {lists}, {_CHOICE}{more}) -> {result}")
    def mixture(x: Tensor, table: Tensor, weights: Tensor, *rest: Any) -> Any:
        matrices, choice = (rest[:2], rest[2:6]) if fused else (rest[:3], rest[3:7])
        experts = _split(matrices, choice[0]) if fused else paired(*matrices)
        mixed = _mix(x, table, weights, experts, choice)
        return mixed if measured else mixed[0]


def _split(matrices: Any, permuted: bool) -> Any:
    """The first and the gate matrix lie side by side in one."""
    for pair, third in paired(*matrices):
        yield *pair.chunk(2, 0 if permuted else 1), third


for _fused, _measured, _overload in (
    (False, False, ""),
    (True, False, ".fused_weights"),
    (False, True, ".fp8_measurement"),
    (True, True, ".fp8_measurement_fused_weights"),
):
    _define(_overload, _fused, _measured)
