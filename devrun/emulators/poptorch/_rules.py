"""What the device does differently from CPU torch, operation by operation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from poptorch import _torch_private as private
from poptorch._errors import Error
from poptorch._limits import argument
from poptorch._torch_private import leaves_of, pytree

LOSSES = frozenset(
    {
        "binary_cross_entropy",
        "binary_cross_entropy_with_logits",
        "cosine_embedding_loss",
        "cross_entropy",
        "ctc_loss",
        "hinge_embedding_loss",
        "huber_loss",
        "identity_loss",
        "kl_div",
        "l1_loss",
        "margin_ranking_loss",
        "mse_loss",
        "multilabel_soft_margin_loss",
        "nll_loss",
        "nll_loss2d",
        "poisson_nll_loss",
        "smooth_l1_loss",
        "soft_margin_loss",
        "triplet_margin_loss",
        "triplet_margin_with_distance_loss",
    }
)
"""Functions whose result is a loss without being marked."""

_PRODUCTS = frozenset(
    {
        "linear",
        "bilinear",
        "conv1d",
        "conv2d",
        "conv3d",
        "conv_transpose1d",
        "conv_transpose2d",
        "conv_transpose3d",
        "batch_norm",
        "layer_norm",
        "group_norm",
        "instance_norm",
        "prelu",
    }
)
"""Functions of an activation and parameters: the activation's float type wins."""

_INDEX_AT = {
    "cross_entropy": (1, "target"),
    "nll_loss": (1, "target"),
    "one_hot": (0, "tensor"),
    "gather": (2, "index"),
    "scatter": (2, "index"),
    "scatter_": (2, "index"),
    "scatter_add": (2, "index"),
    "scatter_add_": (2, "index"),
    "scatter_reduce": (2, "index"),
    "scatter_reduce_": (2, "index"),
    "take_along_dim": (1, "indices"),
}
"""Arguments that CPU torch wants in 64 bits and the device takes in 32."""

_LARGEST = (
    (torch.float16, 65504, "number in half precision"),
    (torch.int64, 2**31 - 1, "whole number"),
    (torch.int32, 2**31 - 1, "whole number"),
)
"""Type -> the largest number that a tensor of it has on the device."""
_LEAST_HALF = 2.0**-24
_SUMS = frozenset(
    {"add", "add_", "__add__", "__radd__", "__iadd__", "sub", "clamp", "clamp_min"}
    | {"clamp_", "clamp_min_"}
)
"""Functions to which a small number is given so that a result is not 0."""

FACTS = frozenset(
    {"shape", "dtype", "requires_grad", "is_leaf", "ndim", "grad_fn", "layout"}
    | {"device", "is_sparse", "is_quantized", "is_nested", "is_cuda", "is_mps"}
    | {"is_meta", "is_xpu", "is_cpu", "is_ipu", "names", "output_nr"}
    | {"itemsize", "nbytes", "is_mkldnn", "is_vulkan", "is_sparse_csr", "is_xla"}
    | {"is_maia", "is_mtia", "retains_grad", "is_ort", "volatile"}
    | private.FACTS
)
"""Attributes of a tensor that the shape of the graph decides: read, not recorded."""
SETTINGS = frozenset({"set_grad_enabled", "__hash__"} | private.SETTINGS)
UNRECORDED = frozenset({"requires_grad_", "__len__"})

COMPARISONS = frozenset(
    {"lt", "le", "gt", "ge", "__lt__", "__le__", "__gt__", "__ge__"}
    | {"less", "less_equal", "greater", "greater_equal"}
)
"""Functions that the device can't carry out on what is no number."""

READS = frozenset(
    {"item", "__bool__", "__int__", "__float__", "__index__", "tolist", "numpy"}
    | {"__complex__", "__array__", "equal", "allclose", "is_nonzero"}
)
"""Functions that need a value on the host, which a static graph does not have."""


def reads(name: str, args: tuple[Any, ...]) -> bool:
    """Whether a value is asked for; of a single number by its text too."""
    return name in READS or (name == "__format__" and args[0].dim() == 0)


def check_numbers(name: str, args: Any, result: Any) -> Error | None:
    """What a number loses that the type of its tensor cannot hold."""
    kinds = _kinds(result)
    numbers = [v for v in leaves_of(args) if type(v) in (int, float)]
    for dtype, limit, kind in _LARGEST:
        large = [v for v in numbers if limit < abs(v) < float("inf")]
        if dtype in kinds and large:
            return beyond(name, large[0], limit, kind)
    small = [v for v in numbers if 0 < abs(v) < _LEAST_HALF / 2]
    if torch.float16 in kinds and small and name in _SUMS:
        return Error(
            f"{name}: {small[0]} is 0 in half precision, whose least number is "
            f"{_LEAST_HALF:.1g}"
        )
    return None


def beyond(
    name: str,
    number: float,
    limit: float = _LARGEST[0][1],
    kind: str = _LARGEST[0][2],
) -> Error:
    """Of a number that is too large; by default for half precision."""
    return Error(
        f"{name}: {number:.10g} is beyond {limit:g}, the largest {kind} that the IPU "
        "has here"
    )


def is_half(result: Any) -> bool:
    """Whether all its tensors have half precision."""
    return _kinds(result) == {torch.float16}


def overflow(function: Callable[..., Any], *args: Any, **kwargs: Any) -> float:
    """Calls such a function: the largest number if any becomes infinite, else 0.

    It is that of the same function of numbers of 32 bits, or of what is cast.
    """
    narrow, wide = (_floats((args, kwargs), dtype) for dtype in (None, torch.float32))
    given = _numbers(wide)
    found = _numbers(function(*narrow[0], **narrow[1]))
    if all(map(_is_finite, found)) or not all(map(_is_finite, given)):
        return 0.0
    made = _numbers(function(*wide[0], **wide[1]))
    every = given if torch.float16 in _kinds(made) else made
    largest = max((float(v.abs().max()) for v in every if v.numel()), default=0.0)
    return largest if largest < float("inf") else 0.0


def _floats(values: Any, dtype: torch.dtype | None) -> Any:
    """Copies of its tensors, where `dtype` is given with halves in that type."""

    def copied(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        half = dtype is not None and value.dtype is torch.float16
        return value.clone().to(dtype) if half else value.clone()

    return pytree.tree_map(copied, values)


def _numbers(values: Any) -> list[torch.Tensor]:
    tensors = (v for v in leaves_of(values) if isinstance(v, torch.Tensor))
    return [v for v in tensors if v.is_floating_point()]


def _is_finite(tensor: torch.Tensor) -> bool:
    return bool(torch.isfinite(tensor).all())


def _kinds(values: Any) -> set[torch.dtype]:
    return {v.dtype for v in leaves_of(values) if isinstance(v, torch.Tensor)}


def check_results(name: str, results: Sequence[Any]) -> None:
    """Refuse complex numbers, for which PopTorch has no operators.

    Raises:
        Error: Naming the operation.
    """
    for result in results:
        if isinstance(result, torch.Tensor) and result.dtype.is_complex:
            raise Error(
                f"Unsupported ops found in compiled model: [{name}]. Its result is of "
                f"the type {result.dtype}, which the IPU does not have."
            )


class _ActivationType:
    """Calls a function with its float parameters in the type of the activation."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function

    def __call__(self, activation: Any, *args: Any, **kwargs: Any) -> Any:
        def cast(value: Any) -> Any:
            if isinstance(value, torch.Tensor) and value.is_floating_point():
                return value.to(activation.dtype)
            return value

        args, kwargs = pytree.tree_map(cast, (args, kwargs))
        return self._function(activation, *args, **kwargs)


class _Filled:
    """Fills with infinity in place of a number that half precision has not."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function

    def __call__(self, tensor: Any, mask: Any, value: Any) -> Any:
        if tensor.dtype is torch.float16 and type(value) in (int, float):
            value = torch.tensor(value).half().item()
        return self._function(tensor, mask, value)


class _LongIndex:
    """Calls a function with one integer argument in 64 bits."""

    def __init__(self, function: Callable[..., Any], place: int, name: str) -> None:
        self._function, self._place, self._name = function, place, name

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self._name in kwargs:
            kwargs = {**kwargs, self._name: kwargs[self._name].long()}
        elif len(args) > self._place:
            place = self._place
            args = (*args[:place], args[place].long(), *args[place + 1 :])
        return self._function(*args, **kwargs)


def _bincount(
    values: torch.Tensor, weights: torch.Tensor | None = None, minlength: int = 0
) -> torch.Tensor:
    """`torch.bincount` of a length that is known."""
    if weights is None:
        weights = torch.ones_like(values)
    return weights.new_zeros(minlength).scatter_add(0, values.long(), weights)


def _new(tensor: torch.Tensor, *size: Any) -> torch.Tensor:
    """`tensor.new(shape)`, which reads a shape that lost its type as values."""
    shape = size[0] if len(size) == 1 and isinstance(size[0], tuple) else size
    return tensor.new_empty(shape)


def adapted(
    function: Callable[..., Any],
    name: str,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Callable[..., Any]:
    """The function, or one with the device's rules for types around it."""
    if name == "bincount" and argument(args, kwargs, 2, "minlength"):
        return _bincount
    if name in ("masked_fill", "masked_fill_"):
        return _Filled(function)
    if name == "new" and all(isinstance(a, (tuple, int)) for a in args[1:]):
        return _new
    if name in _PRODUCTS:
        leaves = leaves_of((args, kwargs))
        kinds = {
            v.dtype
            for v in leaves
            if isinstance(v, torch.Tensor) and v.is_floating_point()
        }
        if len(kinds) > 1:
            return _ActivationType(function)
    if name in _INDEX_AT:
        place, keyword = _INDEX_AT[name]
        index = argument(args, kwargs, place, keyword)
        if isinstance(index, torch.Tensor) and index.dtype in (
            torch.int32,
            torch.int16,
            torch.uint8,
            torch.int8,
        ):
            if not (name == "nll_loss" and index.dtype == torch.uint8):
                return _LongIndex(function, place, keyword)
    return function


_CONVERTED = {
    torch.int64: torch.int32,
    torch.float64: torch.float32,
    torch.bfloat16: torch.float32,
}
_KEPT = frozenset(
    {torch.uint8, torch.int8, torch.int16, torch.int32, torch.bool}
    | {torch.float16, torch.float32}
)


def device_type(dtype: torch.dtype) -> torch.dtype:
    """The type that a tensor of `dtype` has on the device."""
    return _CONVERTED.get(dtype, dtype)


def check_input(tensor: torch.Tensor) -> None:
    """Raise for a type that has no place on the device."""
    if tensor.dtype not in _KEPT and tensor.dtype not in _CONVERTED:
        raise Error(f"Unsupported input type: {tensor.dtype}")


def on_device(tensor: torch.Tensor) -> torch.Tensor:
    """An input as the graph sees it.

    64-bit integers keep their width inside, because CPU torch indexes with them; what
    leaves the graph is narrowed by `from_device`.
    """
    if tensor.dtype in (torch.float64, torch.bfloat16):
        return tensor.to(torch.float32)
    return tensor


def from_device(tensor: torch.Tensor) -> torch.Tensor:
    """A result in the type in which it comes back."""
    wanted = _CONVERTED.get(tensor.dtype)
    return tensor.to(wanted) if wanted is not None else tensor
