"""What is known of an operator before its first call, worked out once."""

from __future__ import annotations

from typing import Any

import torch

from habana_frameworks._emulation import torch_private as private
from habana_frameworks._emulation.products import HOST_KERNELS
from habana_frameworks._emulation.support import (
    DATA_DEPENDENT,
    UNKEYED_SCALARS,
    is_supported,
)

Handler = Any  # (plan, args, kwargs) -> result
SLOW, FRESH, VIEW, IN_PLACE, SEVERAL = range(5)
"""What a call returns: anything, or one tensor that is new, a view, or an operand, or
a tuple of new tensors."""
HOST_OPERANDS = frozenset({"index", "index_put", "index_put_", private.INDEX_PUT})
"""Operators that accept index tensors of the host."""


class Plan:
    """Facts on one overload.

    `returns`: for each result None (fresh memory), or the position or name of the
    argument it is. `draws`: it uses the device's random stream, `generator` says
    whether by an argument of that name. `reshapes`: it can change the layout of an
    operand in place. `op` runs it on the host; `shape` says whether a call needs no
    more care than its one result.
    """

    __slots__ = (
        "base",
        "data_dependent",
        "draws",
        "full_name",
        "func",
        "generator",
        "handler",
        "host_operands",
        "is_view",
        "keyed",
        "launches",
        "mutated",
        "number",
        "op",
        "reshapes",
        "returns",
        "shape",
        "single",
        "supported",
    )  # fmt: skip

    def __init__(self, func: Any, number: int) -> None:
        schema = private.schema_of(func)
        self.func = func
        self.number = number
        self.base: str = schema.name.split("::")[-1]
        overload = schema.overload_name or "default"
        suffix = "" if overload == "default" else f".{overload}"
        self.full_name = schema.name + suffix
        self.op = HOST_KERNELS.get(self.full_name, private.kernel_of(func))
        aliases = [r.alias_info for r in schema.returns]
        self.is_view = bool(aliases) and all(
            a is not None and not a.is_write for a in aliases
        )
        self.is_view = self.is_view or self.base in private.VIEWS
        self.returns = [self._aliased(schema, a) for a in aliases]
        self.single = len(aliases) == 1 and str(schema.returns[0].type) == "Tensor"
        self.mutated = [
            a.name if a.kwarg_only else position
            for position, a in enumerate(schema.arguments)
            if a.alias_info is not None and a.alias_info.is_write
        ]
        self.supported = not schema.name.startswith("aten::") or is_supported(
            self.base, overload, is_view=self.is_view
        )
        self.data_dependent = self.base in DATA_DEPENDENT
        dunder = self.base.startswith("__")
        stem = self.base if dunder else self.base.rstrip("_")
        self.keyed = stem not in UNKEYED_SCALARS
        tags = func.tags
        names = {a.name for a in schema.arguments}
        self.generator = "generator" in names
        self.draws = torch.Tag.nondeterministic_seeded in tags or self.generator
        outs = any(a.is_out for a in schema.arguments)
        resizes = self.base in ("resize_", "resize_as_", "set_")
        self.reshapes = torch.Tag.inplace_view in tags or outs or resizes
        self.host_operands = self.base in HOST_OPERANDS
        self.handler: Handler | None = None
        self.launches = 0
        self.shape = self._shape()

    def _shape(self) -> int:
        careful = self.draws or self.data_dependent or self.reshapes
        if careful or not self.supported or self.host_operands:
            return SLOW
        if not self.single:
            returns = [str(r.type) for r in private.schema_of(self.func).returns]
            fresh = not self.mutated and not self.is_view and set(returns) == {"Tensor"}
            return SEVERAL if fresh else SLOW
        if self.mutated:
            return IN_PLACE if self.mutated == [0] == self.returns else SLOW
        return VIEW if self.is_view else FRESH

    @staticmethod
    def _aliased(schema: Any, alias: Any) -> int | str | None:
        if alias is None or not alias.is_write:
            return None
        for position, argument in enumerate(schema.arguments):
            info = argument.alias_info
            if info is not None and info.is_write:
                if set(info.before_set) & set(alias.before_set):
                    return argument.name if argument.kwarg_only else position
        return None


class Kernel:
    """A fused kernel of the SDK, which is no operator of torch's."""

    def __init__(self, name: str) -> None:
        self.full_name = name
        self.number = -1 - len(KERNELS)  # apart from those of plans
        self.launches = 0
        KERNELS.append(self)


PLANS: dict[int, Plan] = {}
"""By the identity of the overload, which its plan keeps alive."""
KERNELS: list[Kernel] = []
HANDLERS: dict[str, Handler] = {}


def handles(*names: str) -> Any:
    """Decorator: the function runs the operators of these base names."""

    def register(handler: Handler) -> Handler:
        for name in names:
            HANDLERS[name] = handler
        return handler

    return register


def plan_of(func: Any) -> Plan:
    """The plan of an overload, made at its first call."""
    plan = PLANS.get(id(func))
    if plan is None:
        plan = PLANS[id(func)] = Plan(func, len(PLANS))
        plan.handler = HANDLERS.get(plan.base)
        if plan.handler is not None:
            plan.shape = SLOW
    return plan


def counted() -> list[Plan | Kernel]:
    """All that has a number of launches."""
    return [*PLANS.values(), *KERNELS]
