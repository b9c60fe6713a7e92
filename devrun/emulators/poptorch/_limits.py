"""Arguments that PopTorch does not take, of functions that it compiles otherwise."""

from __future__ import annotations

from typing import Any

import torch

from poptorch._errors import Error

UNSUPPORTED = frozenset({"backward", "register_hook", "retain_grad"})
_RECURRENT = ("lstm", "gru", "rnn_tanh", "rnn_relu")
_BITWISE = ("__and__", "__or__", "__xor__", "__invert__")


def check(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Refuse, by name, what cannot be compiled for the device.

    Raises:
        Error: Naming the operation.
    """
    if name in UNSUPPORTED:
        raise Error(
            f"Unsupported ops found in compiled model: [{name}]. Gradients are made by "
            "the compiler: forward must not ask for them."
        )
    # torch (_tensor_str.py) moves what it prints
    if name in ("cpu", "__repr__", "__format__"):
        raise Error(
            'Illegal move to CPU (via `.to("cpu")`) when using the dispatcher. '
            "Instead, return this output as an IPU tensor."
        )
    if name in ("cross_entropy", "nll_loss"):
        if argument(args, kwargs, 2, "weight") is not None:
            raise Error(f"{name}: the argument weight is not supported on the IPU")
    if name == "ctc_loss" and kwargs.get("reduction") == "none":
        raise Error("ctc_loss: reduction 'none' is not supported on the IPU")
    if name == "one_hot" and (argument(args, kwargs, 1, "num_classes") or -1) < 0:
        raise Error("OneHot num classes must be specified and must be constant.")
    if name == "bincount" and not argument(args, kwargs, 2, "minlength"):
        raise Error(
            "Bincount `minlength` must be specified and must be a constant. On the IPU "
            "MK2 platform the minimum length is also the maximum length"
        )
    if name in ("embedding", "embedding_bag"):
        _check_embedding(name, args, kwargs)
    if name == "interpolate":
        _check_interpolate(args, kwargs)
    if name.startswith("adaptive_avg_pool"):
        _check_divides(
            name, args[0].shape[2:], argument(args, kwargs, 1, "output_size")
        )
    if name in _RECURRENT:
        _check_recurrent(name, args)
    if name.startswith("max_pool") and kwargs.get("return_indices"):
        raise Error(f"{name}: return_indices is not supported on the IPU")
    if name == "topk" and argument(args, kwargs, 4, "sorted") is False:
        raise Error("topk: sorted=False is not supported on the IPU")
    if name.startswith("conv_transpose"):
        dilation = argument(args, kwargs, 7, "dilation")
        if any(one != 1 for one in _each(dilation, 1)):
            raise Error(f"{name}: dilation is not supported on the IPU")
    if name == "__setitem__" and _has_step(args[1]):
        raise Error(
            "In-place modification of slices with step size other than 1 is not "
            "supported."
        )
    if name in _BITWISE or name.startswith("bitwise_"):
        kinds = {one.dtype for one in args if isinstance(one, torch.Tensor)}
        if kinds and kinds <= {torch.uint8, torch.int8}:
            raise Error(f"{name}: not supported on whole numbers of 8 bits on the IPU")


def no_constant(name: str) -> Error:
    """Of what only constants are given to."""
    return Error(
        f"torch.{name} is only supported within constant expressions, for example "
        "torch.ones(3, 3).triu_()."
    )


def argument(
    args: tuple[Any, ...], kwargs: dict[str, Any], place: int, name: str
) -> Any:
    """The argument that is at `place` or named; None without it."""
    return kwargs.get(name, args[place] if len(args) > place else None)


def is_to_host(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether it is `to("cpu")`."""
    given = argument(args, kwargs, 1, "device")
    host = isinstance(given, (str, torch.device)) and str(given) == "cpu"
    return name == "to" and host


def _each(value: Any, count: int) -> tuple[Any, ...]:
    """`value` for each of `count` dimensions."""
    return tuple(value) if isinstance(value, (tuple, list)) else (value or 1,) * count


def _check_embedding(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Of tables: how gradients are made of them, and what a bag leaves out."""
    sparse = 6 if name == "embedding" else 7
    for place, key in ((5, "scale_grad_by_freq"), (sparse, "sparse")):
        if argument(args, kwargs, place, key):
            raise Error(f"Unsupported aten::{name} operation: {key}")
    if name == "embedding":
        return
    if argument(args, kwargs, 10, "padding_idx") is not None:
        raise Error(
            "Unsupported aten::embedding_bag operation: padding_idx parameter is "
            "unsupported."
        )


def _check_interpolate(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """`(input, size, scale_factor, mode, align_corners)`."""
    mode = argument(args, kwargs, 3, "mode")
    size, scale = (
        argument(args, kwargs, place, name)
        for place, name in ((1, "size"), (2, "scale_factor"))
    )
    if mode in ("linear", "trilinear"):
        raise Error(
            f"interpolate: mode {mode!r}: in 1 and 3 dimensions only 'nearest' is "
            "supported on the IPU"
        )
    if mode == "bicubic" and argument(args, kwargs, 4, "align_corners"):
        raise Error(
            "interpolate: mode 'bicubic': only align_corners=False is supported"
        )
    if mode == "bilinear" and size is None:
        factors = set(_each(scale, 2))
        if len(factors) > 1 or any(one != int(one) for one in factors):
            raise Error("Bilinear upsampling with non-integer factor not supported")
    if mode == "area":
        given = args[0].shape[2:]
        made = [int(n * by) for n, by in zip(given, _each(scale, len(given)))]
        _check_divides("interpolate", given, made if size is None else size)


def _check_divides(name: str, given: Any, wanted: Any) -> None:
    """Refuse a size that is no whole part of the one that is there."""
    parts = wanted if isinstance(wanted, (tuple, list)) else [wanted] * len(given)
    for size, part in zip(given[-len(parts) :], parts):
        if part and size % part:
            raise Error(
                f"{name}: Input dim ({size}) is not divisible by the corresponding "
                f"output dim ({part}). The results will differ numerically from "
                "PyTorch's implementation."
            )


def _check_recurrent(name: str, args: tuple[Any, ...]) -> None:
    """`(..., weights, has_biases, num_layers, dropout, train, bidirectional, ...)`."""
    lists = [place for place, one in enumerate(args) if type(one) is list]
    if not lists:
        return
    biases, layers, dropout, _, both = args[lists[0] + 1 : lists[0] + 6]
    if layers > 1:
        raise Error(f"{name}: {layers} layers; the IPU supports one")
    if dropout:
        raise Error(f"{name}: dropout is not supported on the IPU")
    if both:
        raise Error(f"{name}: bidirectional is not supported on the IPU")
    if not biases and name != "gru":
        raise Error(f"{name}: without biases it is not supported on the IPU")


def _has_step(index: Any) -> bool:
    items = index if isinstance(index, tuple) else (index,)
    return any(isinstance(i, slice) and i.step not in (None, 1) for i in items)
