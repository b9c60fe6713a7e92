"""One evaluation step on a graph of fixed size, with every sample counted once.

Log values are means over whole micro-batches, so padding would count in them. Instead,
the rows that do not fill a micro-batch are cut into groups whose sizes divide it, and
each group fills a micro-batch with copies of itself: the mean stays that of the group.
Of 103 rows with micro-batches of 256, that makes groups of 64, 32, 4, 2 and 1.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from devrun.devices.explain import STEP_FAILURES, explain
from devrun.devices.ipu.batch import Flat
from devrun.devices.ipu.executors import Executor
from devrun.devices.ipu.step import means, others_of
from devrun.models.step_module import StepModule
from devrun.step import StepOutput

Run = Callable[[Executor, Sequence[Tensor]], Sequence[Tensor]]


def evaluate(executor: Executor, flat: Flat, rows: int, run: Run) -> StepOutput:
    """The output of `rows` samples on a graph for at least as many."""
    call, capacity = executor.call, executor.rows
    if rows == capacity:
        outputs = run(executor, flat.tensors)
        log_vars = means(call, outputs, None, capacity // call.rows)
        made = list(outputs[len(call.scalars) :])
    else:
        log_vars, made = _padded(executor, flat, rows, run)
    result: dict[str, Any] = others_of(call, made, flat.tensors)
    result["loss"] = log_vars.get("loss")
    result["log_vars"] = log_vars
    # a step may count otherwise than by rows, such as in tokens
    result["num_samples"] = call.num_samples * rows // call.rows
    return StepOutput(result)


def on_host(step: StepModule, batch: Any, mode: str) -> StepOutput:
    """The output of `evaluate_on: host`."""
    try:
        with torch.no_grad():
            return StepOutput(step(batch, mode))
    except STEP_FAILURES as error:
        told = explain(error, batch, step, "the host", dict)
        if told is None:
            raise
        raise told from error


def group_sizes(rows: int, micro: int) -> list[int]:
    """`rows` as a sum of divisors of `micro`, the largest ones that fit first."""
    divisors = [size for size in range(micro, 0, -1) if micro % size == 0]
    sizes: list[int] = []
    for size in divisors:
        count, rows = divmod(rows, size)
        sizes += [size] * count
    return sizes


def _padded(
    executor: Executor, flat: Flat, rows: int, run: Run
) -> tuple[dict[str, Any], list[Tensor]]:
    """Log values and other outputs of the first `rows` rows, each counted once."""
    call, micro = executor.call, executor.call.rows
    parts = executor.rows // micro
    sizes = group_sizes(rows, micro)
    slots, places, begin = [], [], 0
    for number, size in enumerate(sizes):
        group = torch.arange(begin, begin + size)
        slots.append(group.repeat(micro // size))
        places.append(torch.arange(number * micro, number * micro + size))
        begin += size
    idle = -len(slots) % parts
    slots += [slots[-1]] * idle
    weights = torch.tensor([*sizes, *[0] * idle], dtype=torch.float32)
    picked, own = torch.cat(slots), torch.cat(places)
    runs = [run(executor, flat.take(part)) for part in picked.split(executor.rows)]
    outputs = [_together(same) for same in zip(*runs, strict=True)]
    count = len(call.scalars)
    made = [
        value.index_select(0, own)
        if value.dim() and len(value) == len(picked)
        else value
        for value in outputs[count:]
    ]
    return means(call, outputs[:count], weights, rows), made


def _together(values: Sequence[Tensor]) -> Tensor:
    """One output of several calls as if they had been one."""
    if values[0].dim() == 0:
        return torch.stack(list(values))
    return torch.cat(list(values))
