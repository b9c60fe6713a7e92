"""Running an operator on the host and accounting for it as a Gaudi would see it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from habana_frameworks._emulation.capture import CAPTURE
from habana_frameworks._emulation.device import DEVICE, HOST
from habana_frameworks._emulation.lazy import GRAPH
from habana_frameworks._emulation.plans import (
    FRESH,
    IN_PLACE,
    PLANS,
    SEVERAL,
    SLOW,
    VIEW,
    Kernel,
    Plan,
    plan_of,
)
from habana_frameworks._emulation.recorder import (
    DYNAMIC_OP,
    FLOAT64,
    HOST_SYNC,
    INT64,
    RECORDER,
)
from habana_frameworks._emulation.regions import (
    LAUNCHERS,
    inside_kernel,
    launch,
    split,
)
from habana_frameworks._emulation.settings import SETTINGS
from habana_frameworks._emulation.streams import GENERATOR, DeviceStream
from habana_frameworks._emulation.support import may_fall_back
from habana_frameworks._emulation.tensor import (
    HpuTensor,
    bind,
    is_traced,
    refresh,
    wrap,
)
from habana_frameworks._emulation.torch_private import is_traced as tracing

LAZY = SETTINGS.lazy
SHORT = torch.iinfo(torch.int32)
NUMBERS = frozenset((float, int, bool, type(None)))


class Call:
    """The operands of one call, told apart."""

    __slots__ = ("elsewhere", "host_tensors", "operands", "scalars")

    def __init__(self) -> None:
        self.elsewhere = False
        """The result is asked for on another device."""
        self.operands: list[HpuTensor] = []
        self.host_tensors: list[Tensor] = []
        self.scalars: list[Any] = []

    def host(self, value: Any) -> Any:
        """What the host's operator gets in place of `value`."""
        kind = type(value)
        if kind is HpuTensor:
            self.operands.append(value)
            return value._host
        if kind in NUMBERS:
            self.scalars.append(value)
            return value
        if kind is list or kind is tuple:
            return kind([self.host(item) for item in value])
        if isinstance(value, Tensor):
            if value.device.type == "hpu":
                return _host_stand_in(value)
            self.host_tensors.append(value)
            return value
        if kind is torch.device:
            if value.type == "hpu":
                return HOST
            self.elsewhere = True
            return value
        if kind is torch.Generator:
            if value is not GENERATOR:
                raise RuntimeError(
                    f"Expected a 'hpu' device type for generator but found "
                    f"'{value.device.type}'"
                )
            return value
        if kind is not torch.ScriptObject:  # a process group, say, is no constant
            self.scalars.append(value)
        return value


def _host_stand_in(traced: Tensor) -> Tensor:
    """For what a traced program makes on the device itself, as `arange`: on the host.

    The compiler's mode is on, so that this is a stand-in without values as well.
    """
    shape, strides = traced.shape, traced.stride()
    return torch.empty_strided(shape, strides, dtype=traced.dtype, device="cpu")


def run(func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
    """The entry: every operator with a device tensor among its operands.

    Most calls are of positional tensors and numbers, with new tensors, a view or the
    first operand as a result: these are run here, flat and without helpers, which is
    the emulator's cost for each operator. The others go to `execute`.
    """
    if len(types) > 1 and not tracing():
        return NotImplemented  # theirs to take apart, as a result that is waited for
    plan = PLANS.get(id(func)) or plan_of(func)
    shape = plan.shape
    if shape is SLOW or CAPTURE.active is not None:
        return (plan.handler or execute)(plan, args, kwargs or {})
    host = []
    operands = []
    scalars: Any = ()
    for value in args:
        kind = type(value)
        if kind is HpuTensor:
            operands.append(value)
            host.append(value._host)
        elif kind in NUMBERS:
            scalars += (value,)
            host.append(value)
        elif kind is list and value and type(value[0]) in NUMBERS:
            scalars += tuple(value)
            host.append(value)
        else:
            return execute(plan, args, kwargs or {})
    if kwargs:
        for value in kwargs.values():
            if type(value) not in NUMBERS:
                return execute(plan, args, kwargs)
            scalars += (value,)
        out = plan.op(*host, **kwargs)
    else:
        out = plan.op(*host)
    if type(out) is Tensor and out.dtype is torch.int64 and shape is not VIEW:
        _note_int64(plan, out)
    if shape is SEVERAL:
        return _several(plan, operands, scalars, out)
    if shape is IN_PLACE:
        result = operands[0]
        if type(result._host) is not Tensor:
            return result
    elif type(out) is not Tensor:  # a compiler traces
        return wrap(out)
    elif shape is FRESH:
        result = wrap(out)
    else:
        result = wrap(out, operands[0]._memory)
    plan.launches += 1
    if LAZY:
        GRAPH.append_plain(plan, operands, scalars, result)
    elif shape is not VIEW:
        if LAUNCHERS:
            LAUNCHERS[-1].launch()
        else:
            RECORDER.totals["launch"] += 1
    return result


def _several(plan: Plan, operands: list[HpuTensor], scalars: Any, out: Any) -> Any:
    """The end of `run` for a tuple of new tensors, some of which may be left out."""
    made = tuple([None if tensor is None else wrap(tensor) for tensor in out])
    if type(operands[0]._host) is not Tensor:  # a compiler traces
        return made
    plan.launches += 1
    if LAZY:
        results = [tensor for tensor in made if tensor is not None]
        GRAPH.append(plan, operands, scalars if plan.keyed else (), results)
    else:
        launch()
    return made


def execute(plan: Plan, args: Any, kwargs: Any, dynamic: bool = False) -> Any:
    """Run on the host, wrap what comes back, account.

    `dynamic`: with these operands the result's size depends on values.
    """
    dynamic = dynamic or plan.data_dependent
    if dynamic and CAPTURE.active is not None:
        raise RuntimeError(
            f"dynamic shapes are not supported during hpu graph capturing: "
            f"{plan.full_name}"
        )
    call = Call()
    host_args = [call.host(a) for a in args]
    host_kwargs = {k: call.host(v) for k, v in kwargs.items()} if kwargs else {}
    if call.host_tensors:
        _check_devices(plan, call, args)
    traced = bool(call.operands) and is_traced(call.operands[0])
    if not plan.supported and not traced:
        _fall_back(plan, call, plan.full_name)
    elif plan.base == "index" and not traced:
        if any(tensor.dim() for tensor in call.host_tensors):
            # by optimum-habana's account of the loss of RT-DETR
            _fall_back(plan, call, "aten::index by a tensor of the host")
    if plan.draws and not traced:  # a compiler's decompositions take no generator
        out = _draw(plan, host_args, host_kwargs)
    else:
        out = plan.op(*host_args, **host_kwargs)
    if call.elsewhere:
        return out
    results: list[HpuTensor] = []
    made = _outputs(plan, out, call, args, kwargs, results)
    if traced:
        return made
    if plan.mutated:
        _mutated(plan, args, kwargs, results)
    if CAPTURE.active is not None:
        CAPTURE.active.record(plan, host_args, host_kwargs, out, results)
    account(plan, call, results, dynamic)
    _note_float64(plan, call, results)
    return made


def _note_float64(plan: Plan, call: Call, results: list[HpuTensor]) -> None:
    """Where numbers become 64 bits wide; what is computed of them is not told."""
    for tensor in results:
        if tensor.dtype is torch.float64:
            if all(each.dtype is not torch.float64 for each in call.operands):
                RECORDER.note(FLOAT64, plan.full_name, tensor.bytes_on_host)
            return


def _note_int64(plan: Plan, out: Tensor) -> None:
    """Where whole numbers leave the 32 bits that the device keeps of them."""
    if SETTINGS.int64_native or not SETTINGS.check_range or not out.numel():
        return
    if "empty" in plan.base:  # what is not written yet has any value
        return
    low, high = out.aminmax()
    if int(low) < SHORT.min or int(high) > SHORT.max:
        RECORDER.note(INT64, plan.full_name)


def account(
    plan: Plan, call: Call, results: list[HpuTensor], dynamic: bool = False
) -> None:
    """One launch in eager mode (none for a view), one node of the graph in lazy."""
    plan.launches += 1
    if not LAZY:
        if not plan.is_view and plan.supported:
            launch()
        if dynamic:
            RECORDER.note(DYNAMIC_OP, plan.full_name)
        return
    if plan.keyed:
        scalars = tuple(call.scalars)
    else:
        scalars = tuple([v for v in call.scalars if type(v) is str])
    GRAPH.append(plan, call.operands, scalars, results)
    if dynamic:
        GRAPH.flush(plan.base)
        GRAPH.stage()
        RECORDER.note(DYNAMIC_OP, plan.full_name)


def _check_devices(plan: Plan, call: Call, args: Any) -> None:
    for tensor in call.host_tensors:
        if tensor.device.type != "cpu" or tensor.dim() == 0:
            continue
        if plan.host_operands and tensor is not args[0]:
            continue  # indices, but not what they choose from
        raise RuntimeError(
            "Expected all tensors to be on the same device, but found at least two "
            f"devices, {DEVICE} and {tensor.device}! (operator {plan.full_name})"
        )


def _fall_back(plan: Plan, call: Call, what: str) -> None:
    if CAPTURE.active is not None:
        raise RuntimeError(
            f"cpu fallback is not supported during hpu graph capturing: "
            f"{plan.full_name}"
        )
    if not may_fall_back(plan.base):
        raise RuntimeError(f"{plan.full_name} is not yet supported on HPU.")
    nbytes = sum(t.bytes_on_host for t in call.operands)
    if LAZY:
        GRAPH.flush("cpu fallback")
    else:
        split()
    RECORDER.fallback(what, nbytes)


def _draw(plan: Plan, args: list[Any], kwargs: dict[str, Any]) -> Any:
    if plan.generator:
        if GENERATOR not in args and kwargs.get("generator") is None:
            kwargs["generator"] = GENERATOR
        return plan.op(*args, **kwargs)
    with DeviceStream():
        return plan.op(*args, **kwargs)


def _outputs(
    plan: Plan, out: Any, call: Call, args: Any, kwargs: Any, results: list[HpuTensor]
) -> Any:
    """The device's results for the host's; fresh ones are added to `results`."""
    if plan.single:
        where = plan.returns[0]
        if where is not None:
            return args[where] if type(where) is int else kwargs[where]
        memory = call.operands[0]._memory if plan.is_view and call.operands else None
        made = wrap(out, memory)
        results.append(made)
        return made
    if not isinstance(out, (tuple, list)):
        return _wrapped(plan, out, call, results)
    made_all = []
    for value, where in zip(out, _aliases(plan, out)):
        if where is None:
            made_all.append(_wrapped(plan, value, call, results))
        else:
            made_all.append(args[where] if type(where) is int else kwargs[where])
    return type(out)(made_all) if isinstance(out, list) else tuple(made_all)


def _aliases(plan: Plan, out: Any) -> list[int | str | None]:
    return plan.returns if len(plan.returns) == len(out) else [None] * len(out)


def _wrapped(plan: Plan, value: Any, call: Call, results: list[HpuTensor]) -> Any:
    if isinstance(value, Tensor):
        memory = call.operands[0]._memory if plan.is_view and call.operands else None
        made = wrap(value, memory)
        results.append(made)
        return made
    if isinstance(value, (list, tuple)):
        return type(value)([_wrapped(plan, v, call, results) for v in value])
    return value


def _mutated(plan: Plan, args: Any, kwargs: Any, results: list[HpuTensor]) -> None:
    for where in plan.mutated:
        if type(where) is int:
            value = args[where] if where < len(args) else None
        else:
            value = kwargs.get(where)
        for tensor in value if isinstance(value, (list, tuple)) else (value,):
            if type(tensor) is HpuTensor:
                if plan.reshapes:
                    refresh(tensor)
                results.append(tensor)


@contextmanager
def one_launch() -> Iterator[None]:
    """What runs inside is one kernel on the device."""
    if not LAZY:
        launch()
    with inside_kernel():
        yield


def run_kernel(
    kernel: Kernel,
    compute: Callable[..., Any],
    lists: list[list[Tensor]],
    written: list[list[Tensor]],
) -> None:
    """`compute(*lists)`, which writes into those of `written`, as one kernel.

    On the host's tensors; operator by operator where a recording must see them.
    """
    flat: list[Any] = [tensor for tensors in lists for tensor in tensors]
    with torch.no_grad():
        if CAPTURE.active is not None or not all(_is_real(t) for t in flat):
            with one_launch():
                compute(*lists)
            return
        compute(*[[t._host for t in tensors] for tensors in lists])  # type: ignore[attr-defined]
    kernel.launches += 1
    if LAZY:
        results = [tensor for tensors in written for tensor in tensors]
        GRAPH.append(kernel, flat, (), results)
    else:
        launch()


def _is_real(tensor: Tensor) -> bool:
    return type(tensor) is HpuTensor and not is_traced(tensor)


def sync(cause: str, nbytes: int = 0) -> None:
    """The host waits for the device: a flush in lazy mode, and a finding."""
    if CAPTURE.active is not None:
        raise RuntimeError(
            f"{cause} is not supported during hpu graph capturing: the host would "
            "have to wait for a value that a recording does not have"
        )
    if LAZY:
        GRAPH.flush(cause)
    RECORDER.note(HOST_SYNC, cause, nbytes)


def fetch(tensor: HpuTensor, cause: str) -> Tensor:
    """A detached copy on the host, counted as one sync."""
    sync(cause, tensor.bytes_on_host)
    return tensor._host.detach().clone()


bind(run, fetch)
