"""The fused recurrent cells that torch asks of a device, in plain arithmetic.

Formulas: the documentation of torch.nn.LSTMCell and torch.nn.GRUCell, and their
derivatives.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from habana_frameworks._emulation import torch_private as private
from habana_frameworks._emulation.capture import CAPTURE
from habana_frameworks._emulation.dispatch import Call, account
from habana_frameworks._emulation.plans import Plan, handles
from habana_frameworks._emulation.tensor import wrap


class _Composed:
    """Stands in a recording for an operator that is composed here."""

    draws = generator = is_view = False
    mutated: tuple[int, ...] = ()

    def __init__(self, func: Any) -> None:
        self.op = func


def _biased(gates: Tensor, bias: Tensor | None) -> Tensor:
    return gates if bias is None else gates + bias


def _lstm(
    inputs: Tensor,
    hidden: Tensor,
    cx: Tensor,
    bias: Tensor | None = None,
    hidden_bias: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    gates = _biased(inputs, bias) + _biased(hidden, hidden_bias)
    i, f, g, o = gates.chunk(4, 1)
    i, f, g, o = i.sigmoid(), f.sigmoid(), g.tanh(), o.sigmoid()
    cy = f * cx + i * g
    return o * cy.tanh(), cy, torch.cat((i, f, g, o), 1)


def _lstm_backward(
    grad_hy: Tensor | None,
    grad_cy: Tensor | None,
    cx: Tensor,
    cy: Tensor,
    workspace: Tensor,
    has_bias: bool,
) -> tuple[Tensor, Tensor, Tensor | None]:
    i, f, g, o = workspace.chunk(4, 1)
    grad_h = torch.zeros_like(cy) if grad_hy is None else grad_hy
    grad_c = torch.zeros_like(cy) if grad_cy is None else grad_cy
    squashed = cy.tanh()
    grad_c = grad_c + grad_h * o * (1 - squashed * squashed)
    gates = torch.cat(
        (
            grad_c * g * i * (1 - i),
            grad_c * cx * f * (1 - f),
            grad_c * i * (1 - g * g),
            grad_h * squashed * o * (1 - o),
        ),
        1,
    )
    return gates, grad_c * f, gates.sum(0) if has_bias else None


def _gru(
    inputs: Tensor,
    hidden: Tensor,
    hx: Tensor,
    bias: Tensor | None = None,
    hidden_bias: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    ir, iz, i_n = _biased(inputs, bias).chunk(3, 1)
    hr, hz, h_n = _biased(hidden, hidden_bias).chunk(3, 1)
    r, z = (ir + hr).sigmoid(), (iz + hz).sigmoid()
    n = (i_n + r * h_n).tanh()
    return n + z * (hx - n), torch.cat((r, z, n, hx, h_n), 1)


def _gru_backward(
    grad_hy: Tensor, workspace: Tensor, has_bias: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor | None]:
    r, z, n, hx, h_n = workspace.chunk(5, 1)
    grad_n = grad_hy * (1 - z) * (1 - n * n)
    grad_r = grad_n * h_n * r * (1 - r)
    grad_z = grad_hy * (hx - n) * z * (1 - z)
    inputs = torch.cat((grad_r, grad_z, grad_n), 1)
    hidden = torch.cat((grad_r, grad_z, grad_n * r), 1)
    biases = (inputs.sum(0), hidden.sum(0)) if has_bias else (None, None)
    return (inputs, hidden, grad_hy * z, *biases)


CELLS: dict[str, Any] = {
    private.LSTM: _lstm,
    private.LSTM_BACKWARD: _lstm_backward,
    private.GRU: _gru,
    private.GRU_BACKWARD: _gru_backward,
}


@handles(*CELLS)
def _cell(plan: Plan, args: Any, kwargs: Any) -> Any:
    compute = CELLS[plan.base]
    call = Call()
    host = [call.host(a) for a in args]
    host += [call.host(v) for v in kwargs.values()]
    out = compute(*host)
    made = [None if t is None else wrap(t) for t in out]
    results = [t for t in made if t is not None]
    if CAPTURE.active is not None:
        CAPTURE.active.record(_Composed(compute), host, {}, out, results)
    account(plan, call, results)
    return tuple(made)
