"""Operators of PyTorch in terms of fewer, which the importers of ONNX have too.

Of a training step: each is a plain function of tensors that computes what the operator
of that name does. Nothing here needs a scatter, a transposed convolution or the
padding of ONNX, which importers lack or get wrong.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

_ATEN = torch.ops.aten


def batch_norm(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    mean: Any,
    variance: Any,
    training: bool,
    momentum: float,
    eps: float,
) -> Any:
    """With its running statistics changed in place, as `native_batch_norm` does."""
    over = [axis for axis in range(x.dim()) if axis != 1]
    shape = [1, -1, *[1] * (x.dim() - 2)]
    if training:
        own = x.mean(over)
        spread = (x - own.view(shape)).square().mean(over)
        if mean is not None:
            count = x.numel() // x.size(1)
            unbiased = spread * (count / max(1, count - 1))
            mean.copy_(mean * (1 - momentum) + own * momentum)
            variance.copy_(variance * (1 - momentum) + unbiased * momentum)
    else:
        own, spread = mean, variance
    inverse = (spread + eps).sqrt().reciprocal()
    y = (x - own.view(shape)) * inverse.view(shape)
    if weight is not None:
        y = y * weight.view(shape)
    if bias is not None:
        y = y + bias.view(shape)
    return y, own, inverse


def layer_norm(
    x: Tensor,
    normalized: Sequence[int],
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    over = list(range(x.dim() - len(normalized), x.dim()))
    mean = x.mean(over, keepdim=True)
    spread = (x - mean).square().mean(over, keepdim=True)
    inverse = (spread + eps).sqrt().reciprocal()
    y = (x - mean) * inverse
    if weight is not None:
        y = y * weight
    if bias is not None:
        y = y + bias
    return y, mean, inverse


def gelu(x: Tensor, approximate: str = "none") -> Tensor:
    if approximate == "tanh":
        inner = math.sqrt(2 / math.pi) * (x + 0.044715 * (x * x * x))
        return 0.5 * x * (1 + inner.tanh())
    return 0.5 * x * (1 + (x * math.sqrt(0.5)).erf())


def safe_softmax(x: Tensor, dim: int, dtype: Any = None) -> Tensor:
    """A row that is masked as a whole has zeros."""
    masked = (x > -math.inf).to(torch.float32).sum(dim, keepdim=True) < 0.5
    return torch.where(masked.expand_as(x), 0.0, x.softmax(dim, dtype=dtype))


def lerp(start: Tensor, end: Tensor, weight: float) -> Tensor:
    return start + weight * (end - start)


def vector_norm(
    x: Tensor,
    order: float = 2,
    dim: Sequence[int] | None = None,
    keepdim: bool = False,
    *,
    dtype: Any = None,
) -> Any:
    over = list(range(x.dim())) if dim is None else list(dim)
    if order == 2:
        return (x * x).sum(over, keepdim).sqrt()
    if order == math.inf:
        return x.abs().amax(over, keepdim)
    return x.abs().pow(order).sum(over, keepdim).pow(1 / order)


def variance(
    x: Tensor,
    dim: Sequence[int] | None = None,
    *,
    correction: float | None = None,
    keepdim: bool = False,
) -> Any:
    over = list(range(x.dim())) if dim is None else list(dim)
    count = math.prod(x.size(axis) for axis in over)
    centred = x - x.mean(over, keepdim=True)
    left = count - (1 if correction is None else correction)
    return centred.square().sum(over, keepdim) / left


def _chosen(x: Tensor, dim: int, index: Tensor) -> Tensor:
    """Where along `dim` of `x` the one `index` of each row is."""
    shape = [1] * x.dim()
    shape[dim] = -1
    return index == torch.arange(x.size(dim)).view(shape)


def gather(x: Tensor, dim: int, index: Tensor, *, sparse_grad: bool = False) -> Any:
    if index.size(dim) != 1 or index.dim() != x.dim():
        return NotImplemented
    return torch.where(_chosen(x, dim, index), x, 0.0).sum(dim, keepdim=True)


def scatter(x: Tensor, dim: int, index: Tensor, value: float) -> Any:
    if index.size(dim) != 1 or index.dim() != x.dim():
        return NotImplemented
    return torch.where(_chosen(x, dim, index), value, x)


def embedding_backward(
    grad: Tensor, indices: Tensor, rows: int, padding: int, scale_by_freq: bool
) -> Any:
    """As a product with the indices as rows that are one at their place."""
    if scale_by_freq:
        return NotImplemented
    flat = indices.reshape(1, -1)
    chosen = flat == torch.arange(rows).view(-1, 1)
    if padding >= 0:
        chosen = chosen & (flat != padding)
    return chosen.to(grad.dtype) @ grad.reshape(-1, grad.size(-1))


def convolution_backward(
    grad: Tensor,
    x: Tensor,
    weight: Tensor,
    bias_sizes: Sequence[int] | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
    wanted: Sequence[bool],
) -> Any:
    """By convolutions alone."""
    if transposed or x.dim() != 4:
        return NotImplemented
    window = (stride, padding, dilation)
    parts = list(zip(grad.chunk(groups, 1), x.chunk(groups, 1), weight.chunk(groups)))
    to_x = to_weight = None
    if wanted[0]:
        to_x = torch.cat([_to_input(*part, *window) for part in parts], 1)
    if wanted[1]:
        to_weight = torch.cat([_to_weight(*part, *window) for part in parts])
    return to_x, to_weight, grad.sum([0, 2, 3]) if wanted[2] else None


def _to_weight(
    grad: Tensor,
    x: Tensor,
    weight: Tensor,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
) -> Any:
    """The gradient slides over the input, in steps of what was the dilation."""
    slid = _ATEN.convolution(
        x.transpose(0, 1), grad.transpose(0, 1), None,
        dilation, padding, stride, False, [0, 0], 1,
    )  # fmt: skip
    rows, columns = weight.shape[2:]
    return slid[:, :, :rows, :columns].transpose(0, 1)


def _to_input(
    grad: Tensor,
    x: Tensor,
    weight: Tensor,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
) -> Any:
    """A convolution of the gradient, zeros between its values, by the kernel turned
    round."""
    around = []
    for axis in (0, 1):
        reach = dilation[axis] * (weight.size(axis + 2) - 1)
        grad = _spaced(grad, axis + 2, stride[axis])
        before = reach - padding[axis]
        after = x.size(axis + 2) + reach - before - grad.size(axis + 2)
        grad = _widened(grad, axis + 2, min(0, before), after - max(0, before))
        around.append(max(0, before))
    turn = torch.eye(weight[0, 0].numel(), dtype=weight.dtype).flip(0)
    turned = (weight.flatten(2) @ turn).view(weight.shape).transpose(0, 1)
    return _ATEN.convolution(
        grad, turned, None, [1, 1], around, dilation, False, [0, 0], 1
    )


def _spaced(x: Tensor, dim: int, stride: int) -> Tensor:
    """`x` with `stride - 1` zeros between the values along `dim`."""
    if stride == 1:
        return x
    rows = x.unsqueeze(dim + 1)
    shape = [*rows.shape]
    shape[dim + 1] = stride - 1
    spaced = torch.cat([rows, x.new_zeros(shape)], dim + 1).flatten(dim, dim + 1)
    return spaced.narrow(dim, 0, (x.size(dim) - 1) * stride + 1)


def _widened(x: Tensor, dim: int, before: int, after: int, value: float = 0) -> Tensor:
    """`x` with `value` so many times more along `dim`, or so many values fewer."""
    first = max(0, -before)
    x = x.narrow(dim, first, x.size(dim) - first - max(0, -after))
    shape = [*x.shape]
    parts = []
    for count in (before, after):
        shape[dim] = max(0, count)
        parts.append(x.new_full(shape, value))
    return torch.cat([part for part in (parts[0], x, parts[1]) if part.size(dim)], dim)


def pad(x: Tensor, widths: Sequence[int], value: float = 0) -> Tensor:
    for place in range(0, len(widths), 2):
        dim = x.dim() - 1 - place // 2
        x = _widened(x, dim, widths[place], widths[place + 1], value)
    return x


class _Windows:
    """The windows of a pooling layer, in the arguments of its operator."""

    def __init__(
        self,
        x: Tensor,
        size: Sequence[int],
        stride: Sequence[int] = (),
        padding: Sequence[int] = (0,),
        dilation: Sequence[int] = (1,),
    ) -> None:
        self.x, self.padding = x, _pair(padding)
        self.stride = _pair(stride or size)
        spread = zip(_pair(size), _pair(dilation))
        rows, columns = ([step * place for place in range(n)] for n, step in spread)
        self.places = [(row, column) for row in rows for column in columns]
        """Of each value in a window, how far it is from the first."""

    def values(self, place: Sequence[int], outside: float) -> Tensor:
        """At that place in each window, with `outside` around `x`."""
        x = self.x
        for axis in (0, 1):
            dim, wide = x.dim() - 2 + axis, self.padding[axis]
            x = _widened(x, dim, wide, wide, outside)
            last = x.size(dim) - self.places[-1][axis] + place[axis]
            x = _ATEN.slice(x, dim, place[axis], last, self.stride[axis])
        return x

    def put_back(self, place: Sequence[int], values: Tensor) -> Tensor:
        """Zeros in the shape of `x` but for `values` where they were taken."""
        for axis in (0, 1):
            dim = values.dim() - 2 + axis
            values = _spaced(values, dim, self.stride[axis])
            before = place[axis] - self.padding[axis]
            after = self.x.size(dim) - before - values.size(dim)
            values = _widened(values, dim, before, after)
        return values


def _pair(numbers: Sequence[int]) -> Sequence[int]:
    return [*numbers, *numbers][:2]


def max_pool(x: Tensor, *window: Any) -> Any:
    """Without the places of the largest, for which `max_pool_backward` does not ask."""
    if window[4:] == (True,):  # ceil_mode
        return NotImplemented
    windows = _Windows(x, *window[:4])
    largest = windows.values(windows.places[0], -math.inf)
    for place in windows.places[1:]:
        largest = torch.maximum(largest, windows.values(place, -math.inf))
    return largest, torch.zeros_like(largest, dtype=torch.int64)


def max_pool_backward(grad: Tensor, x: Tensor, *window: Any) -> Any:
    """To the first that is the largest of each window."""
    if window[4]:  # ceil_mode
        return NotImplemented
    windows, (largest, _) = _Windows(x, *window[:4]), max_pool(x, *window[:4])
    total, left = torch.zeros_like(x), torch.ones_like(largest, dtype=torch.bool)
    for place in windows.places:
        first = (windows.values(place, -math.inf) == largest) & left
        left = left & ~first
        total = total + windows.put_back(place, torch.where(first, grad, 0.0))
    return total


def average_pool(
    x: Tensor,
    size: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (0,),
    ceil_mode: bool = False,
    padding_counts: bool = True,
    divisor: int | None = None,
) -> Any:
    if ceil_mode or (any(padding) and not padding_counts and divisor is None):
        return NotImplemented
    windows = _Windows(x, size, stride, padding)
    total = sum(windows.values(place, 0.0) for place in windows.places)
    return total / (divisor or len(windows.places))


def average_pool_backward(
    grad: Tensor,
    x: Tensor,
    size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    ceil_mode: bool,
    padding_counts: bool,
    divisor: int | None,
) -> Any:
    if ceil_mode or (any(padding) and not padding_counts and divisor is None):
        return NotImplemented
    windows = _Windows(x, size, stride, padding)
    share = grad / (divisor or len(windows.places))
    return sum(windows.put_back(place, share) for place in windows.places)


FIRST: dict[Any, Callable[..., Any]] = {_ATEN.native_batch_norm.default: batch_norm}
"""What has to go before mutations are taken away: it changes its arguments unsaid."""

THEN: dict[Any, Callable[..., Any]] = {
    _ATEN.native_layer_norm.default: layer_norm,
    _ATEN.gelu.default: gelu,
    _ATEN._safe_softmax.default: safe_softmax,
    _ATEN.lerp.Scalar: lerp,
    _ATEN.linalg_vector_norm.default: vector_norm,
    _ATEN.var.correction: variance,
    _ATEN.gather.default: gather,
    _ATEN.scatter.value: scatter,
    _ATEN.embedding_dense_backward.default: embedding_backward,
    _ATEN.convolution_backward.default: convolution_backward,
    _ATEN.constant_pad_nd.default: pad,
    _ATEN.max_pool2d_with_indices.default: max_pool,
    _ATEN.max_pool2d_with_indices_backward.default: max_pool_backward,
    _ATEN.avg_pool2d.default: average_pool,
    _ATEN.avg_pool2d_backward.default: average_pool_backward,
    _ATEN.silu.default: lambda x: x * x.sigmoid(),
    _ATEN.rsqrt.default: lambda x: x.sqrt().reciprocal(),
    _ATEN.square.default: lambda x: x * x,
    _ATEN.hardtanh.default: lambda x, low=-1.0, high=1.0: x.clamp(low, high),
    _ATEN.any.dim: lambda x, dim, keepdim=False: (
        x.to(torch.float32).sum(dim, keepdim) > 0.5
    ),
}
