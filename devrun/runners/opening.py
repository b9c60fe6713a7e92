"""The lines a run logs before its first update."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import nn
from torch.nn.parameter import is_lazy

from devrun.runners.checkpointer import WholeRun
from devrun.runners.helpers import get_host_info


def opening(runner: WholeRun, workflow: Iterable[Any], loaders: Any) -> list[str]:
    """The lines a run begins with: device, model, schedule and one row for each hook.

    `loaders` are the prepared ones, one for each phase of `workflow`.
    """
    flow = [tuple(phase) for phase in workflow]
    trains = (
        one for one, (mode, _) in zip(loaders, flow, strict=True) if mode != "val"
    )
    size = next((one.samples_per_update for one in trains), None)
    kind = f"{runner.adapter.name}{' (emulated)' * runner.adapter.emulated}"
    ranks = "" if runner.world_size == 1 else f" x {runner.world_size} processes"
    return [
        f"run: {type(runner).__name__} on {kind}{ranks}, host {get_host_info()}, "
        f"work_dir: {runner.work_dir or 'none, nothing is written'}",
        f"model: {runner.model_name}, {parameters_of(runner.model)}",
        f"schedule: max_epochs {runner.max_epochs}, max_iters {runner.max_iters}, "
        f"samples an update: {size}; workflow {flow}",
        *runner.table.rows(),
    ]


def parameters_of(model: nn.Module) -> str:
    """`1,234 parameters (1,000 trainable)`, each counted once."""
    found = list(model.parameters())
    if any(is_lazy(param) for param in found):
        return "parameters that take their shape from the first batch"
    count = sum(param.numel() for param in found)
    trainable = sum(param.numel() for param in found if param.requires_grad)
    return f"{count:,} parameters ({trainable:,} trainable)"
