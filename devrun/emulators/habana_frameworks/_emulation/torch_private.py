"""Every private name of torch's that this package uses, each with the reason.

No other module here names one: the next torch that lacks one of these breaks this file.
Behind each stands the release that it is in since; all are in 2.13. Operators are
torch's own entries into a backend, which have no public twins: a device that lacks one
cannot be used.
"""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Sequence
from types import FunctionType, ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from habana_frameworks._emulation.older_torch import compiled_guard

# -- the device ----------------------------------------------------------------------

_ACCELERATOR: Any = torch._C._acc if hasattr(torch._C, "_acc") else None
IN_PYTHON = _ACCELERATOR is not None
"""Whether this torch takes devices that are written in Python. (2.10)"""
key_of: Callable[[str], str] = torch._C._dispatch_key_for_device
"""The dispatch key that a device's name stands for. (2.1)"""


def has_fallback(key: str) -> bool:
    """Whether operators without a kernel for this dispatch key find one. (2.1)"""
    parsed = torch._C._dispatch_key_parse(key)
    return bool(torch._C._dispatch_has_backend_fallback(parsed))


RAISED: list[BaseException] = []
"""What ended a backward pass and has not reached its caller yet."""
_device_type = itertools.repeat(torch.autograd.DeviceType.PrivateUse1).__next__


class Guard(getattr(_ACCELERATOR, "DeviceGuard", object)):  # type: ignore[misc]
    """Tells torch's core which type the device is."""

    def type_(self) -> Any:
        """PrivateUse1, whose name is hpu now.

        Torch also asks while an error of Python's leaves a backward pass, and would
        end the process at a second one. That an error is on its way shows in any call
        of a builtin, which fails because of it: it is kept in `RAISED`.
        """
        try:
            return _device_type()
        except SystemError as error:
            if error.__cause__ is not None:
                RAISED.append(error.__cause__)
            return _device_type()


class Hooks(getattr(_ACCELERATOR, "PrivateUse1Hooks", object)):  # type: ignore[misc]
    """What torch's core asks of a backend."""

    def is_available(self) -> bool:
        """Always."""
        return True

    def is_built(self) -> bool:
        """Always."""
        return True

    def has_primary_context(self, device_index: int) -> bool:
        """There is one device, and it is ready."""
        return True


def register_device(name: str, module: ModuleType) -> list[Any]:
    """Make `module` torch's of the device; the result must live as long as it."""
    torch._register_device_module(name, module)
    torch.utils.generate_methods_for_privateuse1_backend()
    if not IN_PYTHON:
        return [compiled_guard()]
    kept = [Guard(), Hooks()]
    _ACCELERATOR.register_python_privateuseone_hook(kept[1])
    _ACCELERATOR.register_python_privateuseone_device_guard(kept[0])
    return kept


# -- tensors ---------------------------------------------------------------------------

make_wrapper: Any = Tensor._make_wrapper_subclass
"""A tensor with a shape and a device, and no memory. (1.10)"""


def is_view(tensor: Tensor) -> bool:
    """Whether it shares the memory of another; `_base` would keep that one. (1.5)"""
    return tensor._is_view()


def has_hooks(module: nn.Module) -> bool:
    """Whether calling the module calls more than its forward. (1.0)"""
    before, after = module._forward_pre_hooks, module._forward_hooks
    return bool(before or after or module._backward_hooks)


# -- operators -------------------------------------------------------------------------

COPY_FROM = "_copy_from"
TO_COPY = "_to_copy"
ITEM = "_local_scalar_dense"
INDEX_PUT = "_index_put_impl_"
UNSAFE_INDEX = "_unsafe_index"
VIEWS = ("_unsafe_view", "_reshape_alias")
"""Return memory of their operand, though the schema does not say so."""
CONJUGATED, NEGATED = "_conj", "_neg_view"
UNIQUE = ("_unique", "_unique2")
PACK, PACK_BACKWARD = "_pack_padded_sequence", "_pack_padded_sequence_backward"
LSTM, LSTM_BACKWARD = "_thnn_fused_lstm_cell", "_thnn_fused_lstm_cell_backward_impl"
GRU, GRU_BACKWARD = "_thnn_fused_gru_cell", "_thnn_fused_gru_cell_backward"
PLUMBING = (
    *(COPY_FROM, TO_COPY, ITEM, *VIEWS, LSTM, LSTM_BACKWARD, GRU, GRU_BACKWARD),
    "_fused_sdp_choice",
    "_scaled_dot_product_fused_attention_overrideable",
    "_scaled_dot_product_fused_attention_overrideable_backward",
    "_has_same_storage_numel",
)
"""Move or describe tensors, or are taken apart by the bridge."""


def schema_of(op: Any) -> Any:
    """Arguments and results with their aliases; public is a text of it. (1.12)"""
    return op._schema


def kernel_of(op: Any) -> Any:
    """What the overload's own `__call__` only passes on to, a frame later. (1.12)"""
    return op._op


# -- autograd (1.12) -------------------------------------------------------------------
# A backward pass has public hooks for each node, not for who runs now.

current_sequence: Callable[[], int] = torch._C._autograd._get_sequence_nr
"""The number that the next node of autograd's will have."""
backward_task: Callable[[], int] = torch._C._current_graph_task_id
"""The number of the backward pass that runs; -1 for none."""
current_node: Callable[[], Any] = torch._C._current_autograd_node


def sequence_of(node: Any) -> int:
    """The number that a node got when it was made."""
    return int(node._sequence_nr())


def forward_stack() -> str:
    """The calls that made the node that runs, as text; empty where nobody keeps them.

    Torch keeps them within `torch.autograd.detect_anomaly`, for its error messages.
    """
    node = current_node()
    return "" if node is None else "".join(node.metadata.get("traceback_", ()))


# -- compilers -------------------------------------------------------------------------


def is_traced() -> bool:
    """Whether a compiler tries out a program now; not `is_compiling`, which says so to
    the program that is tried. (2.0)"""
    return torch._guards.TracingContext.try_get() is not None


def register_backends(backend: Callable[..., Any], names: Sequence[str]) -> None:
    """Make `backend` known to torch.compile, and this package nothing to trace. (2.1)

    Public are only the entry points of installed packages. Loading the compiler takes
    a second. Where it was loaded before this package put others in the place of
    torch's functions, it is told that these are traced as those were.
    """
    from torch._dynamo import register_backend, trace_rules

    trace_rules.add("habana_frameworks")
    rules: Any = trace_rules.get_torch_obj_rule_map()
    for function in vars(torch).values():
        if isinstance(function, FunctionType) and hasattr(function, "__wrapped__"):
            original = inspect.unwrap(function)
            if original in rules:
                rules.setdefault(function, rules[original])
    known = torch.compiler.list_backends(exclude_tags=())
    for name in names:
        if name not in known:
            register_backend(name=name)(backend)


def generated_lines(part: torch.fx.GraphModule) -> tuple[int, dict[int, int | None]]:
    """Line of the generated code -> number of the node, from this first line on. (2.1)

    Kept there for torch's own error messages.
    """
    above = part.code.partition("def forward(")[0]  # generated when it is asked for
    made: Any = part
    return above.count("\n") + 1, made._lineno_map or {}


def let_scripts_call(function: Callable[..., Any], operator: str) -> None:
    """torch.jit.script takes `function` for the operator that it wraps. (1.0)"""
    from torch.jit import _builtins

    _builtins._register_builtin(function, operator)


CUDA_NOTHING = ("_lazy_init", "_sleep")
"""Of torch.cuda, called by programs, and nothing on a Gaudi. (1.0)"""
ALLGATHER, REDUCE_SCATTER = "_allgather_base", "_reduce_scatter_base"
"""What a process group must have: collectives over one tensor. (1.8)"""
