"""Which of torch's operators PopTorch compiles for an IPU."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from poptorch._errors import Error
from poptorch._torch_private import TorchDispatchMode, is_composed

_OF_ONE_KERNEL = frozenset(
    {"kthvalue", "cummax", "cummin", "mode", "nanmedian", "nan_to_num"}
)
"""Composed of nothing but a helper that computes it."""
_LIST = Path(__file__).parent / "data" / "poptorch_3_4_ops.txt"


class Operators(TorchDispatchMode):
    """Notes the names of the operators that a function consists of."""

    def __init__(self) -> None:
        super().__init__()
        self.names: dict[str, None] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        namespace, _, name = func.name().partition("::")
        name = name.partition(".")[0]
        # what torch composes of others on every device is no operator of a device
        if namespace == "aten" and (name in _OF_ONE_KERNEL or not is_composed(func)):
            self.names[name] = None
        return func(*args, **(kwargs or {}))


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
