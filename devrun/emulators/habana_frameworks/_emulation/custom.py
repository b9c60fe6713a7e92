"""Operators `torch.ops.hpu.*`: what the SDK adds to torch's, as plain formulas.

Names and signatures are the SDK's. Those for float8 are not here: the host's torch has
no kernels to write them with.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

__all__ = ["OPERATORS", "install", "operator"]

OPERATORS: dict[str, Callable[..., Any]] = {}
"""By schema."""


def operator(schema: str) -> Callable[[Any], Any]:
    """Decorator: the function is the operator of this schema."""

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        OPERATORS[schema] = function
        return function

    return register


def install() -> torch.library.Library:
    """Define them all; they live as long as the result."""
    library = torch.library.Library("hpu", "FRAGMENT")
    for schema, function in OPERATORS.items():
        library.define(schema)
        # composite: stand-ins without values run through the same formula
        name = schema.partition("(")[0]
        library.impl(name, function, "CompositeExplicitAutograd")
    return library


def _unpacked(packed: Tensor, signed: bool) -> Tensor:
    """(..., n) of int32 -> (..., 8 n): the four lowest bits come first."""
    shifts = torch.arange(0, 32, 4, dtype=torch.int32, device=packed.device)
    values = (packed.to(torch.int32).unsqueeze(-1) >> shifts) & 15
    if signed:
        values = torch.where(values > 7, values - 16, values)
    return values.flatten(-2)


def _by_row(values: Tensor, rows: Tensor) -> Tensor:
    """One row of `values` for each group of as many rows as there are of each."""
    if values.dim() < 2 or values.shape[0] == rows.shape[0]:
        return values
    return values.repeat_interleave(rows.shape[0] // values.shape[0], 0)


def _dequantized(
    packed: Tensor, scale: Tensor, zero: Tensor | None, dtype: torch.dtype, signed: bool
) -> Tensor:
    """`(value - zero) * scale`; a zero point of integers is packed as the values."""
    values = _unpacked(packed, signed)
    if zero is None:
        shifted = values.to(dtype)
    elif zero.is_floating_point():
        shifted = values.to(dtype) - _by_row(zero, values).to(dtype)
    else:
        shifted = (values - _by_row(_unpacked(zero, signed), values)).to(dtype)
    return shifted * _by_row(scale, values).to(dtype)


_QUANTIZED = "(Tensor input, Tensor scale, Tensor? zero_point, ScalarType out_dtype)"


@operator(f"convert_from_int4{_QUANTIZED} -> Tensor")
def _from_int4(input: Tensor, scale: Tensor, zero: Any, dtype: Any) -> Tensor:
    return _dequantized(input, scale, zero, dtype, signed=True)


@operator(f"convert_from_uint4{_QUANTIZED} -> Tensor")
def _from_uint4(input: Tensor, scale: Tensor, zero: Any, dtype: Any) -> Tensor:
    return _dequantized(input, scale, zero, dtype, signed=False)


operator("exp_fast_math(Tensor self) -> Tensor")(torch.exp)
operator("sqrt_fast_math(Tensor self) -> Tensor")(torch.sqrt)
operator("rsqrt_fast_math(Tensor self) -> Tensor")(torch.rsqrt)


@operator("plain_index(Tensor self, Tensor[] indices) -> Tensor")
def _plain_index(self: Tensor, indices: list[Tensor]) -> Tensor:
    found: Tensor = torch.ops.aten.index(self, indices)
    return found


@operator("scaled_masked_softmax(Tensor input, Tensor mask, float scale) -> Tensor")
def _masked_softmax(input: Tensor, mask: Tensor, scale: float) -> Tensor:
    return torch.softmax(input * scale + mask, -1)


def _triangular(x: Tensor, scale: float) -> Tensor:
    """In float32; what is above the diagonal that ends in the last corner is -inf."""
    rows, columns = x.shape[-2:]
    seen = torch.ones(rows, columns, dtype=torch.bool, device=x.device)
    seen = seen.tril(columns - rows)
    return (x.float() * scale).masked_fill(~seen, float("-inf"))


@operator(
    "scaled_triangular_softmax(Tensor self, float inv_scale_attn, "
    "Tensor? exp_sum_recpr=None, Tensor? max=None) -> Tensor"
)
def _triangular_softmax(
    self: Tensor,
    scale: float,
    reciprocal: Tensor | None = None,
    greatest: Tensor | None = None,
) -> Tensor:
    if reciprocal is None or greatest is None:
        first: Tensor = _retained(self, scale)[0]
        return first
    found = (_triangular(self, scale) - greatest).exp() * reciprocal
    return found.to(self.dtype)


@operator(
    "scaled_triangular_softmax_retain(Tensor self, float inv_scale_attn) "
    "-> (Tensor, Tensor, Tensor)"
)
def _retained(self: Tensor, scale: float) -> tuple[Tensor, Tensor, Tensor]:
    """Probabilities; of each row 1 / sum of exponentials in float32, greatest score."""
    scores = _triangular(self, scale)
    greatest = scores.amax(-1, keepdim=True).to(self.dtype)
    exponentials = (scores - greatest).exp()
    reciprocal = exponentials.sum(-1, keepdim=True).reciprocal()
    return (exponentials * reciprocal).to(self.dtype), reciprocal, greatest


@operator(
    "scaled_masked_triangular_softmax(Tensor self, Tensor start_end, "
    "float inv_scale_attn, int grouped_batch_size, bool use_max, int mode, "
    "ScalarType? out_dtype=None) -> Tensor"
)
def _masked_triangular_softmax(
    self: Tensor,
    start_end: Tensor,
    scale: float,
    group: int,
    use_max: bool,
    mode: int,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """Columns outside [start, end) of a sample's group get 0, also where none is in."""
    bounds = start_end.reshape(-1, 2).repeat_interleave(group, 0)[:, :, None, None]
    columns = torch.arange(self.shape[-1], device=self.device)
    seen = (columns >= bounds[:, 0]) & (columns < bounds[:, 1])
    scores = _triangular(self, scale).masked_fill(~seen, float("-inf"))
    return torch.softmax(scores, -1).nan_to_num(0.0).to(dtype or self.dtype)


@operator(
    "kv_reorder(Tensor self, Tensor start, Tensor end, Tensor beam_idx) -> Tensor"
)
def _reordered(self: Tensor, start: Tensor, end: Tensor, beams: Tensor) -> Tensor:
    """Of each sample (4 beams first) the positions [start, end) of the axis before the
    last come from other beams: four numbers of two bits, the highest first."""
    shifts = torch.tensor([6, 4, 2, 0], device=self.device)
    chosen = (beams.to(torch.int64).unsqueeze(-1) >> shifts) & 3
    ones = (1,) * (self.dim() - 2)
    taken = self.gather(1, chosen.reshape(*chosen.shape, *ones).expand_as(self))
    position = torch.arange(self.shape[-2], device=self.device).unsqueeze(-1)
    first, last = start.reshape(-1, 1, *ones), end.reshape(-1, 1, *ones)
    return torch.where((position >= first) & (position < last), taken, self)


@operator(
    "kv_reorder_(Tensor(a!) self, Tensor start, Tensor end, Tensor beam_idx) "
    "-> Tensor(a!)"
)
def _reorder(self: Tensor, start: Tensor, end: Tensor, beams: Tensor) -> Tensor:
    return self.copy_(_reordered(self, start, end, beams))


@operator("optimizer_lamb_fused_norm(Tensor[] grad, float max_norm) -> Tensor")
def _lamb_norm(gradients: list[Tensor], limit: float) -> Tensor:
    """What to divide gradients by so that their norm is at most `limit`: (1,)."""
    norm = torch.stack([g.pow(2).sum() for g in gradients]).sum().sqrt()
    return torch.where(norm > limit, norm / limit, torch.ones_like(norm)).reshape(1)


@operator(
    "optimizer_lamb_phase1(Tensor[] gradients, Tensor[] weights, Tensor(a!)[] exp_avg, "
    "Tensor(b!)[] exp_avg_sq, Tensor(c!)[] out_weight_norms, "
    "Tensor(d!)[] out_adam_norms, Tensor(e!)[] out_adam_steps, "
    "Tensor clip_global_grad_norm, int grad_averaging, float beta1, float beta2, "
    "float epsilon, Tensor bias_correction1, Tensor bias_correction2, "
    "float weight_decay) -> ()"
)
def _lamb_step(
    gradients: list[Tensor],
    weights: list[Tensor],
    averages: list[Tensor],
    squares: list[Tensor],
    weight_norms: list[Tensor],
    step_norms: list[Tensor],
    steps: list[Tensor],
    divisor: Tensor,
    averaging: int,
    beta1: float,
    beta2: float,
    epsilon: float,
    correction1: Tensor,
    correction2: Tensor,
    weight_decay: float,
) -> None:
    """Adam's step with decay, and the norms that the trust ratio is made of."""
    share = 1.0 - beta1 if averaging else 1.0
    for i, weight in enumerate(weights):
        gradient = gradients[i] / divisor
        averages[i].mul_(beta1).add_(gradient, alpha=share)
        squares[i].mul_(beta2).addcmul_(gradient, gradient, value=1.0 - beta2)
        root = (squares[i] / correction2).sqrt() + epsilon
        steps[i].copy_(averages[i] / correction1 / root + weight_decay * weight)
        weight_norms[i].copy_(weight.norm().expand_as(weight_norms[i]))
        step_norms[i].copy_(steps[i].norm().expand_as(step_norms[i]))


@operator(
    "optimizer_lamb_phase2(Tensor(a!)[] weights, Tensor[] adam_norms, "
    "Tensor[] weight_norms, Tensor[] adam_steps, Tensor neg_step, float wd, "
    "bool use_lamb) -> ()"
)
def _lamb_update(
    weights: list[Tensor],
    step_norms: list[Tensor],
    weight_norms: list[Tensor],
    steps: list[Tensor],
    negative_rate: Tensor,
    weight_decay: float,
    use_lamb: bool,
) -> None:
    for weight, size, length, step in zip(weights, step_norms, weight_norms, steps):
        ratio = torch.ones_like(size)
        if weight_decay or use_lamb:
            ratio = torch.where((size > 0) & (length > 0), length / size, ratio)
        weight.add_(step * negative_rate * ratio)
