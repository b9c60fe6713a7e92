"""torch's own optimizer loops, operator by operator only the first time.

An update is the same few operators for every parameter, at every step: the first time
they run through dispatch and are taped. From then on the loop runs on the host's
tensors and the tape is accounted for, so that graphs, counts and memory are the same.
"""

from __future__ import annotations

import functools
import importlib
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from habana_frameworks._emulation.capture import CAPTURE
from habana_frameworks._emulation.dispatch import LAZY
from habana_frameworks._emulation.lazy import GRAPH
from habana_frameworks._emulation.memory import COUNTERS
from habana_frameworks._emulation.plans import PLANS, Plan
from habana_frameworks._emulation.recorder import RECORDER
from habana_frameworks._emulation.regions import is_inside
from habana_frameworks._emulation.tensor import HpuTensor
from habana_frameworks._emulation.torch_private import LOOPS


@dataclass
class Tape:
    """What an update does: graph nodes, launches by operator, bytes of temporaries."""

    nodes: list[Any]
    launches: list[tuple[Plan, int]]
    total: int
    temporary: int


def install(replace: Any) -> None:
    """Put the wrappers where torch.optim looks the loops up."""
    for name, loop in LOOPS.items():
        module = importlib.import_module(f"torch.optim.{name}")
        replace(module, loop, _taped(getattr(module, loop)))


def _taped(loop: Any) -> Any:
    tapes: dict[Any, Tape | None] = {}

    @functools.wraps(loop)
    def update(*args: Any, **kwargs: Any) -> None:
        tensors = _device_tensors(args)
        if not tensors or not _plain(kwargs):
            loop(*args, **kwargs)
            return
        key = _key(args, kwargs)
        if key not in tapes:
            tapes[key] = _record(loop, tensors, args, kwargs)
            return
        tape = tapes[key]
        if tape is None or COUNTERS.in_use + tape.temporary > COUNTERS.limit:
            loop(*args, **kwargs)
            return
        loop(*[_hosts(a) if type(a) is list else a for a in args], **kwargs)
        _account(tape, tensors)

    return update


def _plain(kwargs: dict[str, Any]) -> bool:
    """Whether nothing else is under way and every option is a number."""
    if is_inside() or CAPTURE.active is not None or torch.is_grad_enabled():
        return False
    if GRAPH.is_cutting() or torch.compiler.is_compiling():
        return False
    return not any(isinstance(value, Tensor) for value in kwargs.values())


def _device_tensors(lists: tuple[Any, ...]) -> list[HpuTensor]:
    """All of them, in order; none if something is in the way of a tape."""
    found: list[HpuTensor] = []
    for values in lists:
        if values is None:
            continue
        if type(values) is not list:
            return []
        for value in values:
            if type(value) is HpuTensor:
                if type(value._host) is not Tensor:
                    return []
                found.append(value)
            elif value is None or value.device.type != "cpu":
                return []
    return found


def _hosts(values: list[Any]) -> list[Any]:
    return [v._host if type(v) is HpuTensor else v for v in values]


def _key(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    lengths = tuple([0 if a is None else len(a) for a in args])
    # Of a number only whether it is zero decides what a loop does.
    options = [v if type(v) is bool else bool(v) for v in kwargs.values()]
    return lengths, tuple(options), tuple([p.dtype for p in args[0]])


def _record(loop: Any, tensors: list[HpuTensor], args: Any, kwargs: Any) -> Any:
    """Run through dispatch; the tape, or None if more than graph nodes came of it."""
    before = {plan: plan.launches for plan in PLANS.values()}
    totals = RECORDER.totals.copy()
    before_peak = COUNTERS.lower_peak()
    GRAPH.start_tape()
    try:
        loop(*args, **kwargs)
    finally:
        nodes = GRAPH.end_tape()
        temporary = COUNTERS.restore_peak(before_peak)
    launched = RECORDER.totals["launch"] - totals["launch"]
    totals["launch"] += launched
    keyed = any(scalars for _, _, _, scalars, _ in nodes)
    if keyed or totals != RECORDER.totals or (LAZY and not nodes):
        return None
    launches = [(p, p.launches - before.get(p, 0)) for p in PLANS.values()]
    number = {id(tensor): index for index, tensor in enumerate(tensors)}
    numbered = []
    temporaries: list[Any] = []
    for plan, inputs, results, _, alone in nodes:
        for tensor in (*inputs, *results):
            if id(tensor) not in number:
                temporaries.append(tensor)
                number[id(tensor)] = -len(temporaries)
        ins = [number[id(t)] for t in inputs]
        outs = [number[id(t)] for t in results]
        numbered.append((plan.number, ins, outs, alone))
    used = [(plan, count) for plan, count in launches if count]
    return Tape(numbered, used, launched, temporary)


def _account(tape: Tape, tensors: list[HpuTensor]) -> None:
    for plan, count in tape.launches:
        plan.launches += count
    if LAZY:
        GRAPH.replay(tape.nodes, tensors)
    else:
        RECORDER.totals["launch"] += tape.total
    COUNTERS.touch(tape.temporary)
