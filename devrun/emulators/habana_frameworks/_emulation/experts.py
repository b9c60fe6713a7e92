"""Gated experts, `torch.ops.hpu.mixture_of_experts`, of shapes no routing changes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from habana_frameworks._emulation.custom import operator

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "relu": F.relu,
    "silu": F.silu,
}
_INPUTS = "Tensor hidden_states, Tensor expert_routing_table, Tensor router_weights"
_CHOICE = "bool permuted_weights, str activation, int experts_min, int experts_max"
_MEASURED = f"{_CHOICE}, bool measurement_mode"


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


@operator(
    f"mixture_of_experts({_INPUTS}, Tensor[] w1, Tensor[] w2, Tensor[] w3, {_CHOICE}) "
    "-> Tensor"
)
def _experts(
    x: Tensor, table: Tensor, weights: Tensor, w1: Any, w2: Any, w3: Any, *choice: Any
) -> Tensor:
    return _mix(x, table, weights, zip(w1, w2, w3, strict=True), choice)[0]


@operator(
    f"mixture_of_experts.fused_weights({_INPUTS}, Tensor[] w12, Tensor[] w3, "
    f"{_CHOICE}) -> Tensor"
)
def _fused(
    x: Tensor, table: Tensor, weights: Tensor, w12: Any, w3: Any, *choice: Any
) -> Tensor:
    return _mix(x, table, weights, _split(w12, w3, choice[0]), choice)[0]


@operator(
    f"mixture_of_experts.fp8_measurement({_INPUTS}, Tensor[] w1, Tensor[] w2, "
    f"Tensor[] w3, {_MEASURED}) -> (Tensor, Tensor)"
)
def _measured(
    x: Tensor, table: Tensor, weights: Tensor, w1: Any, w2: Any, w3: Any, *choice: Any
) -> tuple[Tensor, Tensor]:
    return _mix(x, table, weights, zip(w1, w2, w3, strict=True), choice[:4])


@operator(
    f"mixture_of_experts.fp8_measurement_fused_weights({_INPUTS}, Tensor[] w12, "
    f"Tensor[] w3, {_MEASURED}) -> (Tensor, Tensor)"
)
def _fused_measured(
    x: Tensor, table: Tensor, weights: Tensor, w12: Any, w3: Any, *choice: Any
) -> tuple[Tensor, Tensor]:
    return _mix(x, table, weights, _split(w12, w3, choice[0]), choice[:4])


def _split(both: list[Tensor], last: list[Tensor], permuted: bool) -> Any:
    """The first and the gate matrix lie side by side in one."""
    for pair, third in zip(both, last, strict=True):
        yield *pair.chunk(2, 0 if permuted else 1), third
