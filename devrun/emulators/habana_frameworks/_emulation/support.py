"""Which operators have an HPU kernel: data with a version, not code."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from habana_frameworks._emulation import torch_private as private
from habana_frameworks._emulation.settings import SETTINGS

DEFAULT_LIST = Path(__file__).parent / "data" / "gaudi_1_19_ops.txt"

DATA_DEPENDENT = frozenset(
    {
        "nonzero",
        "masked_select",
        "unique_dim",
        "bincount",
        "nms",
        "repeat_interleave",
        *private.UNIQUE,
    }
)
"""Operators whose result's size depends on values: a count is read back."""

UNKEYED_SCALARS = frozenset(
    [
        "add",
        "sub",
        "mul",
        "div",
        "pow",
        "rsub",
        "remainder",
        "fmod",
        "floor_divide",
        "eq",
        "ne",
        "lt",
        "le",
        "gt",
        "ge",
        "bitwise_and",
        "bitwise_or",
        "bitwise_xor",
        "bitwise_left_shift",
        "bitwise_right_shift",
        "__lshift__",
        "__rshift__",
        "__and__",
        "__or__",
        "__xor__",
        "lerp",
        "masked_fill",
        "addcmul",
        "addcdiv",
        "fill",
    ]
)
"""Operators whose Python numbers travel as device tensors, hence never recompile."""

PLUMBING = frozenset(
    [
        *private.PLUMBING,
        "copy_",
        "detach",
        "detach_",
        "alias",
        "set_",
        "empty",
        "empty_strided",
        "resize_",
        "is_same_size",
        "is_pinned",
        "record_stream",
        "lift_fresh",
    ]
)
"""What moves or describes tensors, and cells that the bridge decomposes itself."""


_OF_HOSTED = frozenset({"linalg_pinv", "linalg_lstsq"})
"""Composed of a decomposition of matrices, which the device has no kernel for."""


@lru_cache(maxsize=None)
def supported_names() -> frozenset[str]:
    """The names in force, e.g. `add.Tensor`; OSError if a given list is not there."""
    path = Path(SETTINGS.ops_file) if SETTINGS.ops_file else DEFAULT_LIST
    lines = path.read_text(encoding="utf-8").splitlines()
    return frozenset(s for s in map(str.strip, lines) if s and not s.startswith("#"))


def is_supported(base: str, overload: str, *, is_view: bool) -> bool:
    """Whether `base.overload` runs on the device: as itself, by another, decomposed."""
    name = base if overload == "default" else f"{base}.{overload}"
    # the bridge does not register it; what goes on with complex numbers is not told
    is_view = is_view and base != "view_as_complex"
    if is_view or base in PLUMBING or name in supported_names():
        return True
    # Without a kernel for the CPU torch composes it of other operators, here as there.
    has_kernel = _overload(name).has_kernel_for_dispatch_key
    if not _runs_on_host(name):
        return base not in _OF_HOSTED and not _only_by_out(name)
    # Torch runs a structured operator by the kernel of the form that has `out`, and
    # composes one of which not even that has a kernel for the CPU.
    if not has_kernel("CompositeExplicitAutogradNonFunctional"):
        return False
    outs = list(_out_forms(name))
    return any(out in supported_names() for out in outs) or not any(
        map(_runs_on_host, outs)
    )


def _only_by_out(name: str) -> bool:
    """Whether torch runs it by forms with `out` alone, of which the device has none."""
    if not _overload(name).has_kernel_for_dispatch_key("CompositeExplicitAutograd"):
        return False
    outs = list(_out_forms(name))
    hosted = any(map(_runs_on_host, outs))
    return hosted and not any(out in supported_names() for out in outs)


def _runs_on_host(name: str) -> bool:
    return bool(_overload(name).has_kernel_for_dispatch_key("CPU"))


def _overload(name: str) -> Any:
    base, _, overload = name.partition(".")
    return getattr(getattr(torch.ops.aten, base), overload or "default")


def _out_forms(name: str) -> Iterator[str]:
    """The operators with `name`'s inputs that write into tensors of the caller's."""
    base = name.partition(".")[0]
    in_place = base.endswith("_") and not base.endswith("__")
    packet = getattr(torch.ops.aten, base[:-1] if in_place else base)
    inputs = [a.name for a in private.schema_of(_overload(name)).arguments]
    for other in packet.overloads():
        arguments = private.schema_of(getattr(packet, other)).arguments
        plain = [a.name for a in arguments if not a.is_out]
        if plain == inputs and len(plain) < len(arguments):
            yield f"{packet.__name__}.{other}"


def may_fall_back(base: str) -> bool:
    """Whether PT_HPU_PLACE_ON_CPU lets `base` run on the host."""
    allowed = SETTINGS.place_on_cpu
    return allowed is None or base in allowed


def paired(*columns: Sequence[Any]) -> Iterator[tuple[Any, ...]]:
    """The rows of columns that a caller gives; ValueError unless equally long."""
    if len(lengths := {len(column) for column in columns}) > 1:
        raise ValueError(f"as many of each are needed, got {sorted(lengths)}")
    return zip(*columns)
