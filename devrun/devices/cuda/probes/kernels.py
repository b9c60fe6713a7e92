"""Operators for which CUDA has other kernels than a CPU."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from devrun.devices.cuda.probes.watch import Judge, Op
from devrun.probes.sites import line_asking
from devrun.tensors import map_tensors, tensors_in

_PRODUCTS = frozenset(
    ("mm", "addmm", "bmm", "baddbmm", "addbmm", "mv", "addmv", "dot", "vdot")
)
_WORDS = (
    "cuBLAS multiplies no whole numbers: not implemented for '{}'",
    "x.float() of both, and .long() of the product",
)
_ANY_ORDER = frozenset(
    ("nll_loss2d_forward", "max_unpool2d", "max_unpool3d", "put", "put_", "histc")
)
"""Operators that add, or write, in an order of chance."""
_ANY_ORDER_BACK = frozenset(
    [
        *("avg_pool3d", "_adaptive_avg_pool2d", "_adaptive_avg_pool3d"),
        *("adaptive_max_pool2d", "fractional_max_pool2d", "fractional_max_pool3d"),
        *("upsample_linear1d", "upsample_bicubic2d", "grid_sampler_2d"),
        *("grid_sampler_3d", "reflection_pad1d", "reflection_pad2d"),
        *("reflection_pad3d", "_ctc_loss"),
    ]
)
"""Operators whose gradients are added up in an order of chance."""
_VARIES = (
    "deterministic algorithms are asked for, and CUDA has none for it",
    "another operator; or leave deterministic out, or warn_only=True",
)
_WORKSPACE = "CUBLAS_WORKSPACE_CONFIG"
_CUBLAS = (
    f"deterministic algorithms are asked for, and no {_WORKSPACE} is set",
    "deterministic: true in the config, which sets both; or the variable, to :4096:8",
)
_RAISES = 2
"""Of torch's debug modes, that in which it raises."""
_LACKS = "_cpu\" not implemented for '"
"""In what torch says of a type of numbers for which it has no kernel there."""


class WholeProducts(Judge):
    """Notes products of matrices of whole numbers, which a CPU alone has."""

    def operator(self, op: Op) -> None:
        kind = op.inputs[0].dtype
        whole = not (kind.is_floating_point or kind.is_complex or kind is torch.bool)
        if op.name in _PRODUCTS and whole:
            why, remedy = _WORDS
            what = op.call.strip("_") or op.name
            row = ("breaks", "refused", what, why.format(kind), remedy, line_asking())
            self.counts[row] += 1


class Deterministic(Judge):
    """Notes what has no deterministic kernel, where nothing else is allowed.

    https://docs.pytorch.org/docs/stable/generated/torch.use_deterministic_algorithms
    """

    _site: str | None = None
    """The line of the user's that allows nothing else."""

    def asked(self) -> AbstractContextManager[Any]:
        """Within, it is known who asks for it."""
        ask = torch.use_deterministic_algorithms

        def call(*args: Any, **kwargs: Any) -> None:
            self._site = line_asking()
            ask(*args, **kwargs)

        return patch.object(torch, ask.__name__, call)

    def operator(self, op: Op) -> None:
        if torch.get_deterministic_debug_mode() < _RAISES or op.call == "backward":
            return  # a backward pass would not come to what raises there
        row: tuple[Any, ...] = ()
        if op.name in _PRODUCTS and _WORKSPACE not in os.environ:
            row = ("cuBLAS", *_CUBLAS, self._site or line_asking())
        elif _varies(op):
            row = (op.call.strip("_") or op.name, *_VARIES, line_asking())
        if row:
            found = ("breaks", "refused", *row)
            self.counts[found] += 1


def _varies(op: Op) -> bool:
    """Whether what is added to what comes in an order of chance."""
    if op.name == "cumsum":
        return op.inputs[0].is_floating_point()
    if op.name in ("bincount", "median", "nanmedian"):  # with weights, or of a dim
        return len(op.args) > 1 and op.args[1] is not None
    gradient = any(one.requires_grad for one in op.inputs)
    return op.name in _ANY_ORDER or (gradient and op.name in _ANY_ORDER_BACK)


class Widened(TorchFunctionMode):
    """Does in float32 what a CPU alone has no kernel for, such as `histc` of int32."""

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        try:
            return func(*args, **kwargs)
        except NotImplementedError as error:
            if _LACKS not in str(error):
                raise
            kind = next(tensors_in(args)).dtype
            args, kwargs = map_tensors(Tensor.float, (args, kwargs))
            return map_tensors(lambda one: one.to(kind), func(*args, **kwargs))
