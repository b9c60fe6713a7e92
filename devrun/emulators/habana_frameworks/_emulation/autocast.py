"""Autocast on the device: three lists of operators, as the vendor's bridge has them."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from habana_frameworks._emulation.device import KEY as DEVICE_KEY
from habana_frameworks._emulation.torch_private import schema_of

KEY = f"Autocast{DEVICE_KEY}"
LOWER = [
    "addmm",
    "addbmm",
    "baddbmm",
    "batch_norm",
    "bmm",
    "conv1d",
    "conv2d",
    "conv3d",
    "conv_transpose1d",
    "conv_transpose2d",
    "conv_transpose3d",
    "dot",
    "dropout",
    "feature_dropout",
    "group_norm",
    "instance_norm",
    "layer_norm",
    "leaky_relu",
    "linear",
    "matmul",
    "mean",
    "mm",
    "mul",
    "mv",
    "softmax",
    "log_softmax",
    "scaled_dot_product_attention",
]
FP32 = [
    "acos",
    "addcdiv",
    "asin",
    "atan2",
    "bilinear",
    "binary_cross_entropy",
    "binary_cross_entropy_with_logits",
    "cdist",
    "cosh",
    "cosine_embedding_loss",
    "cosine_similarity",
    "cross_entropy_loss",
    "dist",
    "div",
    "divide",
    "true_divide",
    "embedding",
    "embedding_bag",
    "erfinv",
    "exp",
    "expm1",
    "hinge_embedding_loss",
    "huber_loss",
    "kl_div",
    "l1_loss",
    "log",
    "log10",
    "log1p",
    "log2",
    "logsumexp",
    "margin_ranking_loss",
    "mse_loss",
    "multi_margin_loss",
    "multilabel_margin_loss",
    "nll_loss",
    "nll_loss2d",
    "pdist",
    "poisson_nll_loss",
    "pow",
    "reciprocal",
    "renorm",
    "rsqrt",
    "sinh",
    "smooth_l1_loss",
    "soft_margin_loss",
    "softplus",
    "tan",
    "topk",
    "triplet_margin_loss",
]
PROMOTE = [
    "add",
    "addcmul",
    "addcdiv",
    "cat",
    "div",
    "exp",
    "mul",
    "pow",
    "sub",
    "iadd",
    "truediv",
    "stack",
]
FIRST_ONLY = ("batch_norm", "group_norm", "instance_norm", "layer_norm")
"""Of these only the first operand is cast."""

_log = logging.getLogger("habana_frameworks")


def _eligible(value: Any) -> bool:
    return (
        isinstance(value, Tensor)
        and value.device.type == "hpu"
        and value.is_floating_point()
        and value.dtype is not torch.float64
    )


def _cast(value: Any, dtype: torch.dtype) -> Any:
    if _eligible(value):
        return value if value.dtype is dtype else value.to(dtype)
    if type(value) in (list, tuple):
        return type(value)(_cast(item, dtype) for item in value)
    return value


def _widest(args: Any, found: torch.dtype | None = None) -> torch.dtype | None:
    for value in args:
        if type(value) in (list, tuple):
            found = _widest(value, found)
        elif _eligible(value):
            if found is None:
                found = value.dtype
            else:
                found = torch.promote_types(found, value.dtype)
    return found


def _wrapper(op: Any, policy: str) -> Callable[..., Any]:
    first_only = schema_of(op).name.split("::")[-1] in FIRST_ONLY

    def cast_and_call(*args: Any, **kwargs: Any) -> Any:
        torch.set_autocast_enabled("hpu", False)  # what this calls is not cast again
        try:
            if policy == "lower":
                dtype: Any = torch.get_autocast_dtype("hpu")
            elif policy == "fp32":
                dtype = torch.float32
            else:
                dtype = _widest((*args, *kwargs.values()))
            if dtype is None:
                return op(*args, **kwargs)
            if first_only:
                return op(_cast(args[0], dtype), *args[1:], **kwargs)
            kwargs = {k: _cast(v, dtype) for k, v in kwargs.items()}
            return op(*[_cast(a, dtype) for a in args], **kwargs)
        finally:
            torch.set_autocast_enabled("hpu", True)

    return cast_and_call


def _list(variable: str, default: list[str]) -> list[str]:
    """The list in the file that `variable` names, which replaces the default."""
    path = os.environ.get(variable)
    if not path:
        return default
    try:
        lines = Path(path).read_text(encoding="utf-8").split()
    except OSError as error:
        _log.warning("%s: %s; the default list is used", variable, error)
        return default
    return [line.split(".")[0] for line in lines]


def policies() -> dict[str, str]:
    """Operator name -> 'lower', 'fp32' or 'promote'; the first list that has it."""
    lower = _list("PT_HPU_AUTOCAST_LOWER_PRECISION_OPS_LIST", LOWER)
    fp32 = _list("PT_HPU_AUTOCAST_FP32_OPS_LIST", FP32)
    found: dict[str, str] = {}
    for names, policy in ((lower, "lower"), (fp32, "fp32"), (PROMOTE, "promote")):
        for name in names:
            found.setdefault(name, policy)
    return found


def install() -> torch.library.Library:
    """Register the casting kernels and make bfloat16 the default."""
    library = torch.library.Library("aten", "IMPL")
    for name, policy in policies().items():
        packet = getattr(torch.ops.aten, name, None)
        if packet is None:
            continue
        for overload in packet.overloads():
            op = getattr(packet, overload)
            returned = [str(r.type) for r in schema_of(op).returns]
            if "out" in overload or "Tensor" not in "".join(returned):
                continue
            suffix = "" if overload == "default" else f".{overload}"
            library.impl(f"{name}{suffix}", _wrapper(op, policy), KEY)
    torch.set_autocast_dtype("hpu", torch.bfloat16)
    return library
