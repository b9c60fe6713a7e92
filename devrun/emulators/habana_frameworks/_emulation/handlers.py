"""Operators that need more than running on the host: transfers, syncs, masks."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from habana_frameworks._emulation import torch_private as private
from habana_frameworks._emulation.capture import CAPTURE
from habana_frameworks._emulation.dispatch import (
    LAZY,
    Call,
    account,
    execute,
    sync,
)
from habana_frameworks._emulation.lazy import GRAPH
from habana_frameworks._emulation.plans import Plan, handles, plan_of
from habana_frameworks._emulation.recorder import FLOAT64, HOST_SYNC, RECORDER
from habana_frameworks._emulation.settings import SETTINGS
from habana_frameworks._emulation.sites import user_place
from habana_frameworks._emulation.tensor import HpuTensor, adopt, is_traced, wrap

INT32 = torch.iinfo(torch.int32)
FLOAT32 = torch.finfo(torch.float32)


def check_range(host: Tensor) -> None:
    """Lazy mode stores 64-bit types in 32 bits and refuses what does not fit."""
    if SETTINGS.int64_native or not SETTINGS.check_range or host.numel() == 0:
        return
    if host.dtype is torch.int64:
        low, high = host.aminmax()
        bad = int(low) < INT32.min or int(high) > INT32.max
        kinds = "Long to Int"
    elif host.dtype is torch.float64:
        finite = host[torch.isfinite(host)]
        bad = finite.numel() > 0 and float(finite.abs().max()) > FLOAT32.max
        kinds = "Double to Float"
    else:
        return
    if bad:
        raise RuntimeError(
            f"Error when trying to cast {kinds}, Input values range is out of the "
            "range of the 32-bit type that the device stores"
        )


def upload(target: HpuTensor, source: Tensor) -> HpuTensor:
    """Host to device, into `target`."""
    check_range(source)
    if LAZY:
        if GRAPH.is_pending(target):
            sync("copy into a pending tensor", source.nbytes)
        target._site = user_place()
    if source.dtype is torch.bool and target.dtype is torch.bool:
        # Byte by byte: torch's own copy makes every byte that is not 0 a 1.
        target._host.view(torch.uint8).copy_(source.view(torch.uint8))
    else:
        target._host.copy_(source)
    target._graph = 0
    if CAPTURE.active is not None:
        plan = plan_of(torch.ops.aten.copy_.default)
        kept = [target._host, source.clone()]
        CAPTURE.active.record(plan, kept, {}, target._host, [target])
    RECORDER.totals["bytes to device"] += source.nbytes
    if target.dtype is torch.float64 and not is_traced(target):
        RECORDER.note(FLOAT64, "copy to the device", source.nbytes)
    return target


def download(source: HpuTensor, cause: str) -> Tensor:
    """The host data of a device tensor, to be copied: the host waits for it.

    In lazy mode the copy ends the open graph only where that has work for it.
    """
    if is_traced(source):
        return source._host
    if CAPTURE.active is not None or not LAZY or GRAPH.is_pending(source):
        sync(cause, source.bytes_on_host)
    else:
        RECORDER.note(HOST_SYNC, cause, source.bytes_on_host)
    RECORDER.totals["bytes to host"] += source.bytes_on_host
    return source._host


@handles("copy_")
def _copy(plan: Plan, args: Any, kwargs: Any) -> Any:
    target, source = args[0], args[1]
    if type(target) is not HpuTensor:
        return target.copy_(download(source, "copy to host"))
    if type(source) is not HpuTensor:
        return upload(target, source)
    return execute(plan, args, kwargs)


@handles(private.TO_COPY)
def _to_copy(plan: Plan, args: Any, kwargs: Any) -> Any:
    device = kwargs.get("device")
    if device is None or device.type == "hpu":
        return execute(plan, args, {k: v for k, v in kwargs.items() if v is not None})
    if device.type == "meta":
        return plan.op(args[0]._host, **kwargs)
    options = {k: v for k, v in kwargs.items() if k not in ("device", "pin_memory")}
    return plan.op(download(args[0], "copy to host"), **options)


@handles(private.ITEM)
def _item(plan: Plan, args: Any, kwargs: Any) -> Any:
    # A full marker even where the value is already there.
    if not is_traced(args[0]):
        sync("item", args[0].bytes_on_host)
    return plan.op(args[0]._host)


@handles("equal", "allclose")
def _equal(plan: Plan, args: Any, kwargs: Any) -> bool:
    for tensor in args[:2]:
        if type(tensor) is not HpuTensor:
            raise RuntimeError(
                "Expected all tensors to be on the same device, but found at least "
                f"two devices, hpu:0 and cpu! (operator {plan.full_name})"
            )
    if not is_traced(args[0]):
        sync(plan.base)
    return bool(plan.op(args[0]._host, args[1]._host, *args[2:], **kwargs))


@handles(private.PACK)
def _pack(plan: Plan, args: Any, kwargs: Any) -> Any:
    """Lengths, and sizes of batches, are of the host on every device."""
    padded, lengths, *rest = args
    if type(lengths) is HpuTensor:
        raise RuntimeError(
            "'lengths' argument should be a 1D CPU int64 tensor, but got 1D hpu:0 "
            "Long tensor"
        )
    call = Call()
    plain = getattr(torch.ops.aten, private.PACK).default
    packed, sizes = plain(call.host(padded), lengths, *rest)
    made = wrap(packed)
    account(plan, call, [made])
    if not kwargs:
        return made, sizes
    given = kwargs["out0"], kwargs["out1"]
    for target, value in zip(given, (made, sizes)):
        target.resize_(value.shape).copy_(value)
    return given


@handles(private.PACK_BACKWARD)
def _pack_backward(plan: Plan, args: Any, kwargs: Any) -> Any:
    call = Call()
    made = wrap(plan.op(call.host(args[0]), *args[1:]))
    account(plan, call, [made])
    return made


def _has_mask(indices: Any) -> bool:
    masks = (torch.bool, torch.uint8)
    return any(t is not None and t.dtype in masks for t in indices)


@handles("index", "index_put", "index_put_", private.INDEX_PUT, private.UNSAFE_INDEX)
def _index(plan: Plan, args: Any, kwargs: Any) -> Any:
    return execute(plan, args, kwargs, dynamic=_has_mask(args[1]))


@handles("set_")
def _set(plan: Plan, args: Any, kwargs: Any) -> Any:
    if len(args) > 1 and type(args[1]) is HpuTensor:
        source = args[1]
        host = source._host
        if len(args) > 2:
            host = host.as_strided(args[3], args[4], args[2])
        adopt(args[0], wrap(host, source._memory))
        return args[0]
    if len(args) == 1:
        adopt(args[0], wrap(torch.empty(0, dtype=args[0].dtype)))
        return args[0]
    source = args[1]
    host = torch.empty(0, dtype=args[0].dtype).set_(*args[1:])
    adopt(args[0], wrap(host, args[0]._memory))
    return args[0]


@handles("convolution_overrideable", "convolution_backward_overrideable")
def _convolution(plan: Plan, args: Any, kwargs: Any) -> Any:
    """What torch calls on a backend of its own; the host's kernel has another name."""
    if plan.base == "convolution_overrideable":
        op = torch.ops.aten.convolution.default
        return execute(plan_of(op), args, kwargs)
    op = torch.ops.aten.convolution_backward.default
    # The host's kernel also wants the bias's sizes: one for each output channel.
    weight, groups, transposed = args[2], args[8], args[6]
    channels = weight.shape[1] * groups if transposed else weight.shape[0]
    return execute(plan_of(op), (*args[:3], [channels], *args[3:]), kwargs)


@handles(private.CONJUGATED, private.NEGATED)
def _lazily_negated(plan: Plan, args: Any, kwargs: Any) -> Any:
    """Done at once: what is on the device carries no mark of work to be done yet."""
    conjugated = plan.base == private.CONJUGATED
    whole = torch.ops.aten.conj_physical if conjugated else torch.ops.aten.neg
    return execute(plan_of(whole.default), args, kwargs)


@handles("detach", "alias")
def _detach(plan: Plan, args: Any, kwargs: Any) -> Any:
    """As cheap as possible: autograd does it for every saved and accumulated tensor."""
    source = args[0]
    made = wrap(source._host, source._memory)
    made._graph = source._graph
    if source._graph:
        made._value = source._value
    return made
