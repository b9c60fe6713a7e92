"""The lines a run logs before its first update."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import nn
from torch.nn.parameter import is_lazy

from devrun.runners.checkpointer import WholeRun
from devrun.runners.helpers import get_host_info
from devrun.runners.position import loader_facts


def opening(runner: WholeRun, workflow: Iterable[Any], loaders: Any) -> list[str]:
    """The lines a run begins with: device, model, schedule and one row for each hook.

    `loaders` are the prepared ones, one for each phase of `workflow`.
    """
    kind = f"{runner.adapter.name}{' (emulated)' * runner.adapter.emulated}"
    ranks = "" if runner.world_size == 1 else f" x {runner.world_size} processes"
    return [
        f"run: {type(runner).__name__} on {kind}{ranks}, host {get_host_info()}, "
        f"work_dir: {runner.work_dir or 'none, nothing is written'}",
        f"model: {runner.model_name}, {parameters_of(runner.model)}",
        f"schedule: {_schedule(runner, workflow, loaders)}",
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


def _schedule(runner: WholeRun, workflow: Iterable[Any], loaders: Any) -> str:
    """Updates of the whole run, and the samples they see."""
    flow = [tuple(phase) for phase in workflow]
    said = [_times(runner.max_iters, "update")]
    if runner.max_epochs is not None:
        said.append(_times(runner.max_epochs, "epoch"))
    for (mode, _), loader in zip(flow, loaders, strict=True):
        if mode != "train":
            continue
        facts = loader_facts(loader, mode)
        if (size := facts["samples_per_update"]) is not None:
            said.append(f"{_times(size, 'sample')} an update")
        count = facts["samples"]
        said.append(f"{'?' if count is None else f'{count:,}'} samples in the data set")
        break
    return f"{', '.join(said)}; workflow {flow}"


def _times(count: int | None, what: str) -> str:
    if count is None:
        return f"{what}s without a limit"
    return f"{count:,} {what}{'' if count == 1 else 's'}"
