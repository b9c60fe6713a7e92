"""Making torch believe in the device: module, guard, factories, random streams."""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any

import torch

from habana_frameworks._emulation import autocast, cells, custom, experts, handlers

# Registering handlers is what importing these two is for.
from habana_frameworks._emulation import torch_private as private
from habana_frameworks._emulation.bus import acquire
from habana_frameworks._emulation.device import KEY
from habana_frameworks._emulation.dispatch import execute, run
from habana_frameworks._emulation.plans import plan_of
from habana_frameworks._emulation.products import WHOLE
from habana_frameworks._emulation.recorder import FLOAT64, RECORDER
from habana_frameworks._emulation.tensor import HpuTensor, wrap

_kept: list[Any] = [cells, handlers]
"""Libraries end their registrations when they are collected."""


def _empty(
    size: Any,
    dtype: Any = None,
    layout: Any = None,
    device: Any = None,
    pin_memory: Any = None,
    memory_format: Any = None,
) -> HpuTensor:
    acquire()
    if dtype is torch.float64 and size:  # torch itself makes single ones
        RECORDER.note(FLOAT64, "aten::empty")
    options = {} if memory_format is None else {"memory_format": memory_format}
    return wrap(torch.empty(size, dtype=dtype, device="cpu", **options))


def _empty_strided(
    size: Any,
    stride: Any,
    dtype: Any = None,
    layout: Any = None,
    device: Any = None,
    pin_memory: Any = None,
) -> HpuTensor:
    acquire()
    return wrap(torch.empty_strided(size, stride, dtype=dtype, device="cpu"))


def _copy_from(source: Any, target: Any, non_blocking: bool = False) -> Any:
    # Not `target.copy_`: torch calls this where the way back through Python is shut.
    return run(torch.ops.aten.copy_.default, (HpuTensor,), (target, source))


def _factory(op: Any, *args: Any, **kwargs: Any) -> Any:
    """Operators without a tensor among their operands: `randperm`, `tril_indices`."""
    acquire()
    return execute(plan_of(op), args, kwargs)


def install(module: ModuleType) -> None:
    """Register the device with `module` as torch.hpu; once a process."""
    if _kept[2:]:
        return
    _kept.extend(private.register_device("hpu", module))
    aten = torch.library.Library("aten", "IMPL")
    aten.impl("empty.memory_format", _empty, KEY)
    aten.impl("empty_strided", _empty_strided, KEY)
    aten.impl(private.COPY_FROM, _copy_from, KEY)
    for name in WHOLE:
        op = getattr(torch.ops.aten, name).default
        aten.impl(name, functools.partial(_factory, op), KEY)
    rest = torch.library.Library("_", "IMPL")
    rest.fallback(_factory, KEY)
    rest.fallback(torch.library.fallthrough_kernel, autocast.KEY)
    if not private.has_fallback(f"Autograd{KEY}"):  # before torch 2.10, of a plug-in
        rest.fallback(torch.library.fallthrough_kernel, f"Autograd{KEY}")
    _kept.extend((aten, rest, experts, autocast.install(), custom.install()))
