"""What the processes of a run compare: before it is built, and before it starts."""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

import devrun
from devrun.config.dump import to_plain
from devrun.dist import get_dist_info
from devrun.hooks.checkpoint import CheckpointHook
from devrun.hooks.evaluation.hook import EvalHook
from devrun.hooks.logger.hook import LoggerHook
from devrun.ranks import require_same
from devrun.runners.arguments import length
from devrun.runners.changes import leaves
from devrun.runners.workflow import Workflow

_OWN = ("work_dir", "omp_num_threads", "log_level")
"""Keys that may differ: only rank 0 writes, and machines are of different sizes."""
_COLLECTIVE = (EvalHook, CheckpointHook, LoggerHook)
"""Hooks that exchange something in each of their turns."""


def check_config(cfg: Mapping[str, Any]) -> None:
    """Refuse a config or a version that is not the same on all ranks.

    Texts with `${env:NAME}` are compared as they are written, so that what is local
    to a machine, such as a folder, can be given by the environment.

    Raises:
        ConfigError: names the ranks and the keys.
    """
    if get_dist_info()[1] == 1:
        return
    keys = {k: v for k, v in leaves(to_plain(cfg)) if k.split(".")[0] not in _OWN}
    require_same({**_versions(), **keys})


def check_run(runner: Any, flow: Workflow) -> None:
    """Refuse to start where model, hooks or position differ between ranks.

    Raises:
        ConfigError: names the ranks and what differs.
    """
    if runner.world_size == 1:
        return
    hooks = [hook for hook in runner.hooks if isinstance(hook, _COLLECTIVE)]
    require_same(
        {
            **_versions(),
            "the model": _described(runner.model),
            "max_epochs or max_iters": (runner.max_epochs, runner.max_iters),
            "the position (epoch, iteration)": (runner.epoch, runner.iter),
            "the workflow": flow.flow,
            "the list of hooks": [type(hook).__name__ for hook in hooks],
        }
    )


def check_data(runner: Any, flow: Workflow) -> None:
    """Refuse to start where epochs differ in length: some ranks would wait for ever.

    Raises:
        ConfigError: names the ranks and the lengths.
    """
    if runner.world_size > 1 and runner.counts_epochs:
        phases = zip(flow.flow, flow.loaders)
        require_same(
            {
                f"updates per epoch of the data of phase {number}": length(
                    loader, needed=False
                )
                for number, ((mode, _), loader) in enumerate(phases, 1)
                if mode != "val"  # shares of val differ by one
            }
        )


def _versions() -> dict[str, str]:
    return {
        "devrun": devrun.__version__,
        "torch": str(torch.__version__),
        "python": ".".join(platform.python_version_tuple()[:2]),
    }


def _described(model: nn.Module) -> str:
    parameters = [
        (name, str(p.dtype), None if nn.parameter.is_lazy(p) else tuple(p.shape))
        for name, p in model.named_parameters()
    ]
    digest = hashlib.sha256(repr(parameters).encode()).hexdigest()[:8]
    return f"{type(model).__name__} with {len(parameters)} parameters ({digest})"
