"""Helpers that a forward calls: losses, markers, casts of products, prints.

Each has its value on the host too, so a model that uses them runs without a device.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.overrides import handle_torch_function, has_torch_function

from poptorch import _capture, _rules, enums
from poptorch._errors import Error
from poptorch._options_base import check
from poptorch._printing import Layout, print_tensor
from poptorch._torch_private import DisableTorchFunction


def _need_tensor(value: Any, name: str) -> None:
    if not isinstance(value, torch.Tensor):
        raise Error(f"{name} needs a tensor, not {type(value).__name__}")


def _identity(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.view_as(tensor)


def identity_loss(x: torch.Tensor, reduction: str) -> torch.Tensor:
    """Mark `x` as a loss, reduced by `"sum"`, `"mean"` or `"none"`.

    Raises:
        AssertionError: Another reduction.
    """
    check(
        reduction in ("sum", "mean", "none"), f"Unsupported reduction type: {reduction}"
    )
    _need_tensor(x, "identity_loss")
    if has_torch_function((x,)):
        return handle_torch_function(identity_loss, (x,), x, reduction=reduction)
    if reduction == "sum":
        return x.sum()
    return x.mean() if reduction == "mean" else x.clone()


def nop(tensor: torch.Tensor) -> torch.Tensor:
    """Do nothing, visibly in the graph."""
    _need_tensor(tensor, "nop")
    if has_torch_function((tensor,)):
        return handle_torch_function(nop, (tensor,), tensor)
    return _identity(tensor)


def ipu_print_tensor(
    tensor: torch.Tensor,
    title: str = "",
    print_gradient: bool = True,
    summarise_threshold: int = 1000,
    edge_items: int = 3,
    max_line_width: int = 80,
    digits: int = 5,
    float_format: str = "auto",
    separator: str = " ",
    open_bracket: str = "(",
    close_bracket: str = ")",
) -> torch.Tensor:
    """Print the values on stderr each time the graph runs, and those of the gradient.

    Raises:
        ValueError: A float format other than auto, fixed, scientific or none.
    """
    _need_tensor(tensor, "ipu_print_tensor")
    if float_format not in ("auto", "fixed", "scientific", "none"):
        raise ValueError(f"Unknown float format {float_format!r}")
    layout = Layout(
        summarise_threshold,
        edge_items,
        max_line_width,
        digits,
        float_format,
        separator,
        open_bracket,
        close_bracket,
    )
    if _capture.current() is None:
        return tensor  # on the host nothing is printed
    return handle_torch_function(
        _printed, (tensor,), tensor, title, print_gradient, layout
    )


def _printed(
    tensor: torch.Tensor, title: str, print_gradient: bool, layout: Layout
) -> torch.Tensor:
    result = _identity(tensor)
    if _capture.current() is not None:
        return result
    print_tensor(tensor, title, layout)
    if print_gradient and result.requires_grad:
        result.register_hook(lambda g: print_tensor(g, f"{title}_gradient", layout))
    return result


def recomputationCheckpoint(*tensors: Any) -> Any:  # noqa: N802 - PopTorch's name
    """Mark what is kept of a stage while the rest is computed again in backward.

    Takes tensors, or one list or tuple of them; returns the same structure.

    Raises:
        ValueError: Anything else.
    """
    if len(tensors) == 1 and isinstance(tensors[0], (list, tuple)):
        kept = [recomputationCheckpoint(t) for t in tensors[0]]
        return type(tensors[0])(kept)
    for tensor in tensors:
        if not isinstance(tensor, torch.Tensor):
            raise ValueError(
                "recomputationCheckpoint takes tensors, or a list or tuple of tensors, "
                f"not {type(tensor).__name__}"
            )
    kept = [nop(t) for t in tensors]
    return kept[0] if len(kept) == 1 else tuple(kept)


def set_available_memory(
    tensor: torch.Tensor, available_memory_proportion: float
) -> torch.Tensor:
    """Give the product that made `tensor` this share of the memory."""
    _need_tensor(tensor, "set_available_memory")
    return nop(tensor)


def serializedMatMul(  # noqa: N802 - PopTorch's name
    lhs: torch.Tensor,
    rhs: torch.Tensor,
    mode: enums.MatMulSerializationMode,
    factor: int = 0,
    keep_precision: bool = False,
) -> torch.Tensor:
    """`torch.matmul`, cut in `factor` parts along a dimension."""
    check(
        isinstance(mode, enums.MatMulSerializationMode),
        f"not a MatMulSerializationMode: {mode!r}",
    )
    check(isinstance(factor, int), "factor must be an integer")
    check(isinstance(keep_precision, bool), "keep_precision must be a bool")
    return torch.matmul(lhs, rhs)


def _index(start: Any) -> torch.Tensor:
    if not isinstance(start, torch.Tensor) or start.is_floating_point():
        raise Error("The start of a dynamic slice must be an integer tensor")
    return start


def dynamic_slice(
    tensor: torch.Tensor, dim: int, start: torch.Tensor, size: int, step: int = 1
) -> torch.Tensor:
    """`size` elements of `dim` from a start that is known when the graph runs.

    Raises:
        Error: A start that is no integer tensor, or an empty or negative slice.
    """
    _check_slice(size, step)
    if _capture.current() is not None and tensor.shape[dim] % size:
        raise Error(
            f"The size of the slice ({size}) must be a factor of the slicing dimension "
            f"({tensor.shape[dim]})."
        )
    offsets = torch.arange(0, size, step, device=tensor.device)
    places = (_index(start).reshape(()).long() + offsets) % tensor.shape[dim]
    return torch.index_select(tensor, dim, places)


def dynamic_update(
    input: torch.Tensor, src: torch.Tensor, dim: int, start: torch.Tensor, size: int
) -> torch.Tensor:
    """A copy of `input` with `size` elements of `dim` from `start` on replaced."""
    _check_slice(size, 1)
    if input.dim() != src.dim():
        raise Error(
            "input and src tensors must have same dimensionality. "
            f"({input.dim()}) vs ({src.dim()})"
        )
    if input.dtype != src.dtype:
        raise Error(
            "input and src tensor must have same dtype. "
            f"({_rules.device_type(input.dtype)} vs {_rules.device_type(src.dtype)})"
        )
    offsets = torch.arange(size, device=input.device)
    places = (_index(start).reshape(()).long() + offsets) % input.shape[dim]
    shape = [-1 if d == dim % src.dim() else 1 for d in range(src.dim())]
    return torch.scatter(input, dim, places.view(shape).expand_as(src), src)


def _check_slice(size: int, step: int) -> None:
    if not isinstance(size, int) or step <= 0:
        raise Error(
            f"Slices must have a constant size and a positive step, not {size}, {step}"
        )
    if size == 0:
        raise Error("The start and end of a slice must be different.")
    if size < 0:
        raise Error(
            "Taking a slice of a tensor with the end less than the start is not "
            "supported."
        )


class CPU:
    """Calls a host function in the middle of an inference graph."""

    def __init__(self, layer_to_call: Callable[..., Any], ID: str) -> None:  # noqa: N803
        self._function = layer_to_call
        self.ID = ID

    def __call__(self, *inputs: torch.Tensor) -> Any:
        """The function's result, without gradient."""
        recorder = _capture.current()
        if recorder is None:
            return self._function(*inputs)
        if recorder.training:
            raise Error("poptorch.CPU is supported in inference models only")
        with DisableTorchFunction():
            given = tuple(recorder.stand_in(t) for t in inputs)
            # The function may use modules of its own, so it is tried on real tensors.
            trial = self._called(*(torch.zeros(t.shape, dtype=t.dtype) for t in given))
            like = [(t.shape, t.dtype) for t in _tensors(trial)]
            single = isinstance(trial, torch.Tensor)

            def example() -> Any:
                made = [torch.empty(shape, dtype=kind) for shape, kind in like]
                return made[0] if single else type(trial)(made)

            name = f"CPU({self.ID})"
            return recorder.record(self._called, name, given, {}, example=example)

    def _called(self, *inputs: torch.Tensor) -> Any:
        with torch.no_grad():
            return self._function(*inputs)


def _tensors(value: Any) -> list[torch.Tensor]:
    return [value] if isinstance(value, torch.Tensor) else list(value)
