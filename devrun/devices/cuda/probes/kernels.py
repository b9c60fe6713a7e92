"""Operators for which CUDA and a CPU have kernels of other types of numbers."""

from __future__ import annotations

from typing import Any

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
