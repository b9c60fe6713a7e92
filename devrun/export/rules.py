"""Operators of PyTorch as nodes of ONNX, one function or entry each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from devrun.export.graph import Graph, Value

Rule = Callable[..., Any]
"""`rule(graph, out, *args, **kwargs)` gives the name of the output, or several; `out`
says of which shape and type it is, and tensors are `Value`s. `NotImplemented` stands
for arguments that it cannot do."""


def _unary(kind: str) -> Rule:
    return lambda g, out, x: g.add(kind, g.cast(x, out.dtype))


def _binary(kind: str, turned: bool = False) -> Rule:
    def rule(g: Graph, out: Value, a: Any, b: Any, alpha: float = 1) -> str:
        x, y = g.cast(a, out.dtype), g.cast(b, out.dtype)
        if turned:
            x, y = y, x
        if alpha != 1:
            y = g.add("Mul", y, g.constant(alpha, out.dtype))
        return g.add(kind, x, y)

    return rule


def _compared(kind: str, *, negated: bool = False) -> Rule:
    def rule(g: Graph, out: Value, a: Value, b: Any) -> str:
        dtype = a.dtype
        if isinstance(b, Value):
            dtype = torch.promote_types(a.dtype, b.dtype)
        elif isinstance(b, float) and not dtype.is_floating_point:
            dtype = torch.float32
        if dtype is torch.bool:
            dtype = torch.float32
        made = g.add(kind, g.cast(a, dtype), g.cast(b, dtype))
        return g.negated(made) if negated else made

    return rule


def _power(g: Graph, out: Value, base: Any, exponent: Any) -> str:
    x = g.cast(base, out.dtype)
    if isinstance(exponent, Value):
        return g.add("Pow", x, g.cast(exponent, out.dtype))
    if exponent == 2:
        return g.add("Mul", x, x)
    if exponent == 0.5:
        return g.add("Sqrt", x)
    return g.add("Pow", x, g.constant(exponent, out.dtype))


def _where(g: Graph, out: Value, condition: Value, a: Any, b: Any) -> str:
    chosen = condition.name
    if chosen in g.opposite:
        chosen, a, b = g.opposite[chosen], b, a
    if condition.shape != out.shape:
        chosen = g.add("Expand", chosen, g.shape(out.shape))
    return g.add("Where", chosen, g.expanded(a, out), g.expanded(b, out))


def _clamp(g: Graph, out: Value, x: Value, low: Any = None, high: Any = None) -> str:
    name = g.cast(x, out.dtype)
    for kind, limit in (("Max", low), ("Min", high)):
        if limit is not None:
            name = g.add(kind, name, g.expanded(limit, out))
    return name


def _same(g: Graph, out: Value, x: Value, *_: Any, **__: Any) -> str:
    name = g.cast(x, out.dtype)
    return name if x.shape == out.shape else g.reshaped(name, out.shape)


def _permute(g: Graph, out: Value, x: Value, dims: Sequence[int]) -> str:
    return g.add("Transpose", x.name, perm=[dim % len(x.shape) for dim in dims])


def _transpose(g: Graph, out: Value, x: Value, a: int = 0, b: int = 1) -> str:
    order = list(range(len(x.shape)))
    order[a], order[b] = order[b], order[a]
    return _permute(g, out, x, order) if len(order) > 1 else x.name


def _concat(g: Graph, out: Value, parts: Sequence[Value], dim: int = 0) -> str:
    names = [g.cast(part, out.dtype) for part in parts if 0 not in part.shape]
    if len(names) == 1:
        return names[0]
    return g.add("Concat", *names, axis=dim % len(out.shape))


def _slice(
    g: Graph, out: Value, x: Value, dim: int = 0,
    start: int | None = None, end: int | None = None, step: int = 1,
) -> str:  # fmt: skip
    if x.shape == out.shape:
        return x.name
    size = x.shape[dim]
    first, last, _ = slice(start, end).indices(size)
    return g.sliced(x.name, dim % len(x.shape), first, last, step)


def _select(g: Graph, out: Value, x: Value, dim: int, index: int) -> str:
    index %= x.shape[dim]
    row = g.sliced(x.name, dim % len(x.shape), index, index + 1)
    return g.reshaped(row, out.shape)


def _slice_scatter(
    g: Graph, out: Value, x: Value, part: Value, dim: int = 0,
    start: int | None = None, end: int | None = None, step: int = 1,
) -> Any:  # fmt: skip
    if step != 1:
        return NotImplemented
    dim, size = dim % len(x.shape), x.shape[dim]
    first, last, _ = slice(start, end).indices(size)
    names = [g.expanded(part, part)]
    if first:
        names.insert(0, g.sliced(x.name, dim, 0, first))
    if last < size:
        names.append(g.sliced(x.name, dim, last, size))
    return g.add("Concat", *names, axis=dim) if len(names) > 1 else names[0]


def _select_scatter(
    g: Graph, out: Value, x: Value, part: Value, dim: int, index: int
) -> Any:
    index %= x.shape[dim]
    shape = [*x.shape]
    shape[dim] = 1
    of = torch.empty(shape, dtype=x.dtype, device="meta")
    row = Value(g.reshaped(g.cast(part, x.dtype), shape), of)
    return _slice_scatter(g, out, x, row, dim, index, index + 1)


def _split(g: Graph, out: Sequence[Value], x: Value, _: Any, dim: int = 0) -> list[str]:
    dim, names, place = dim % len(x.shape), [], 0
    for part in out:
        end = place + part.shape[dim]
        names.append(g.sliced(x.name, dim, place, end))
        place = end
    return names


def _unbind(g: Graph, out: Sequence[Value], x: Value, dim: int = 0) -> list[str]:
    return [_select(g, part, x, dim, place) for place, part in enumerate(out)]


def _reduced(kind: str) -> Rule:
    def rule(
        g: Graph, out: Value, x: Value, dim: Any = None, keepdim: bool = False, **_: Any
    ) -> str:
        name, rank = g.cast(x, out.dtype), len(x.shape)
        dims = [dim] if isinstance(dim, int) else dim or range(rank)
        axes = sorted(one % rank for one in dims) if rank else []
        if not axes:
            return name
        return g.add(kind, name, axes=axes, keepdims=int(keepdim))

    return rule


def _matmul(g: Graph, out: Value, a: Value, b: Value) -> str:
    return g.add("MatMul", a.name, b.name)


def _addmm(
    g: Graph, out: Value, c: Value, a: Value, b: Value, *, beta: float = 1,
    alpha: float = 1,
) -> str:  # fmt: skip
    product, added = g.add("MatMul", a.name, b.name), c.name
    if alpha != 1:
        product = g.add("Mul", product, g.constant(alpha, out.dtype))
    if beta != 1:
        added = g.add("Mul", added, g.constant(beta, out.dtype))
    return g.add("Add", product, added)


def _softmax(kind: str) -> Rule:
    def rule(g: Graph, out: Value, x: Value, dim: int, *_: Any) -> str:
        last = len(x.shape) - 1
        if dim % len(x.shape) == last:
            return g.add(kind, x.name, axis=last)
        turned = _transpose(g, out, x, dim, last)
        made = g.add(kind, turned, axis=last)
        order = list(range(last + 1))
        order[dim], order[last] = order[last], order[dim]
        return g.add("Transpose", made, perm=order)

    return rule


def _convolution(
    g: Graph, out: Value, x: Value, weight: Value, bias: Value | None,
    stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int],
    transposed: bool, output_padding: Sequence[int], groups: int,
) -> Any:  # fmt: skip
    if transposed:
        return NotImplemented
    given = [one.name for one in (x, weight, bias) if one is not None]
    return g.add(
        "Conv",
        *given,
        kernel_shape=weight.shape[2:],
        strides=[*stride],
        pads=[*padding, *padding],
        dilations=[*dilation],
        group=groups,
    )


def _embedding(g: Graph, out: Value, weight: Value, indices: Value, *_: Any) -> str:
    return g.add("Gather", weight.name, indices.name, axis=0)


def _logical(kind: str) -> Rule:
    def rule(g: Graph, out: Value, a: Value, b: Value) -> Any:
        if out.dtype is not torch.bool:
            return NotImplemented
        return g.add(kind, g.cast(a, torch.bool), g.cast(b, torch.bool))

    return rule


def _not(g: Graph, out: Value, x: Value) -> Any:
    if x.dtype is not torch.bool:
        return NotImplemented
    return g.negated(x.name)


_SAME = """
    view _unsafe_view reshape unsqueeze squeeze clone detach alias lift_fresh_copy
    _to_copy
"""
_UNARY = "neg exp log sqrt tanh sigmoid erf relu abs sin cos floor ceil"
RULES: dict[str, Rule] = {
    **dict.fromkeys(_SAME.split(), _same),
    **{name: _unary(name.capitalize()) for name in _UNARY.split()},
    **{name: _binary(name.capitalize()) for name in ("add", "sub", "mul", "div")},
}
"""Of the operators by their names in `torch.ops.aten`, with any overload."""
RULES.update(
    rsub=_binary("Sub", turned=True),
    maximum=_binary("Max"),
    minimum=_binary("Min"),
    eq=_compared("Equal"),
    ne=_compared("Equal", negated=True),
    gt=_compared("Greater"),
    le=_compared("Greater", negated=True),
    lt=_compared("Less"),
    ge=_compared("Less", negated=True),
    logical_and=_logical("And"),
    bitwise_and=_logical("And"),
    logical_or=_logical("Or"),
    bitwise_or=_logical("Or"),
    logical_not=_not,
    bitwise_not=_not,
    pow=_power,
    reciprocal=lambda g, out, x: g.add(
        "Div", g.constant(1, out.dtype), g.cast(x, out.dtype)
    ),
    where=_where,
    clamp=_clamp,
    expand=lambda g, out, x, *_, **__: g.expanded(x, out),
    copy=lambda g, out, _, source, *__: g.expanded(source, out),
    permute=_permute,
    transpose=_transpose,
    t=_transpose,
    cat=_concat,
    slice=_slice,
    select=_select,
    slice_scatter=_slice_scatter,
    select_scatter=_select_scatter,
    split=_split,
    split_with_sizes=_split,
    unbind=_unbind,
    sum=_reduced("ReduceSum"),
    mean=_reduced("ReduceMean"),
    amax=_reduced("ReduceMax"),
    mm=_matmul,
    bmm=_matmul,
    addmm=_addmm,
    _softmax=_softmax("Softmax"),
    _log_softmax=_softmax("LogSoftmax"),
    convolution=_convolution,
    embedding=_embedding,
)
