"""One evaluation step on a graph of fixed size, with every sample counted once.

Log values are means over whole micro-batches, so padding would count in them. Instead,
the rows that do not fill a micro-batch are cut into groups whose sizes divide it, and
each group fills a micro-batch with copies of itself: the mean stays that of the group.
Of 103 rows with micro-batches of 256, that makes groups of 64, 32, 4, 2 and 1.
"""

from __future__ import annotations

from typing import Any, Callable, Sequence

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
    call = executor.call
    sizes = _group_sizes(rows, call.rows)
    slots, places = _slots(sizes, call.rows)
    idle = -len(slots) % (executor.rows // call.rows)
    picked = torch.cat([*slots, *[slots[-1]] * idle])
    weights = torch.tensor([*sizes, *[0] * idle], dtype=torch.float32)
    runs = [run(executor, flat.take(part)) for part in picked.split(executor.rows)]
    outputs = [_together(same) for same in zip(*runs)]
    count = len(call.scalars)
    log_vars = means(call, outputs[:count], weights, rows)
    made = [
        value[places] if value.dim() and len(value) == len(picked) else value
        for value in outputs[count:]
    ]
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


def _group_sizes(rows: int, micro: int) -> list[int]:
    """`rows` as a sum of divisors of `micro`, the largest ones that fit first."""
    sizes: list[int] = []
    for size in (size for size in range(micro, 0, -1) if micro % size == 0):
        count, rows = divmod(rows, size)
        sizes += [size] * count
    return sizes


def _slots(sizes: Sequence[int], micro: int) -> tuple[list[Tensor], Tensor]:
    """The rows that fill the micro-batch of each group, and the place of each row's
    first copy among all of these."""
    groups = torch.arange(sum(sizes)).split(list(sizes))
    slots = [group.repeat(micro // len(group)) for group in groups]
    places = [
        number * micro + torch.arange(len(group)) for number, group in enumerate(groups)
    ]
    return slots, torch.cat(places)


def _together(values: Sequence[Tensor]) -> Tensor:
    """One output of several calls as if they had been one."""
    if values[0].dim() == 0:
        return torch.stack(list(values))
    return torch.cat(list(values))
