"""Which of torch's operators PopTorch compiles for an IPU."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

from poptorch._errors import Error
from poptorch._torch_private import TorchDispatchMode, is_composed, leaves_of

_OF_ONE_KERNEL = frozenset(
    {"kthvalue", "cummax", "cummin", "mode", "nanmedian", "nan_to_num"}
)
"""Composed of nothing but a helper that computes it."""
_LIST = Path(__file__).parent / "data" / "poptorch_3_4_ops.txt"


class Operators(TorchDispatchMode):
    """Notes the names of the operators that a function consists of.

    Not of those of constants alone, which PopTorch computes before it lowers a graph
    (type_and_constant_canonicalization/EvaluateConstexprs.cpp).

    Args:
        constants: id and tensor of what is computed of no input of the graph; it grows.
    """

    def __init__(self, constants: dict[int, torch.Tensor]) -> None:
        super().__init__()
        self.names: dict[str, None] = {}
        self._constants = constants

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        namespace, _, name = func.name().partition("::")
        name = name.partition(".")[0]
        constant = torch.Tag.nondeterministic_seeded not in func.tags and all(
            id(one) in self._constants for one in _tensors((args, kwargs))
        )
        own = namespace == "aten" and not constant
        # what torch composes of others on every device is no operator of a device
        if own and (name in _OF_ONE_KERNEL or not is_composed(func)):
            self.names[name] = None
        made = func(*args, **(kwargs or {}))
        for one in _tensors(made):
            self._constants.pop(id(one), None)  # it may be changed in place
            if constant:
                self._constants[id(one)] = one
        return made


def _tensors(values: Any) -> list[torch.Tensor]:
    return [one for one in leaves_of(values) if isinstance(one, torch.Tensor)]


def check_operators(function: str, names: Iterable[str]) -> None:
    """Refuse a function of an operator that PopTorch has no lowering for.

    Raises:
        Error: naming the operators, as PopTorch does.
    """
    if _plain(function) in supported():
        return
    missing = [name for name in names if _plain(name) not in supported()]
    if missing:
        listed = ", ".join(f"aten::{name}" for name in missing)
        raise Error(
            f"Unsupported ops found in compiled model: [{listed}]. Not all operations "
            f"are supported yet by Graphcore's PyTorch compiler ({function} needs it)"
        )


@functools.lru_cache(maxsize=None)
def supported() -> frozenset[str]:
    """Names of operators, without overload and the `_` of those in place."""
    lines = _LIST.read_text("utf-8").splitlines()
    return frozenset(_plain(line) for line in lines if not line.startswith("#"))


def _plain(name: str) -> str:
    return name.rstrip("_")
