"""The config of a rehearsal: the user's, short, small and away from its work_dir."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from devrun.rehearsal.check.keys import BATCHES, inside
from devrun.rehearsal.check.request import Request

_LOADERS = ("data.train_dataloader", "data.val_dataloader")
_MOST = 2
"""Batches of an update, and replicas."""


def rehearsed(cfg: Any, request: Request, folder: str) -> dict[str, Any]:
    """Keys and values with which `cfg` trains twice `steps` updates, in `folder`.

    Between the two halves it evaluates and saves, so that a run which resumes there
    can be laid over the second.
    """
    runner = cfg.get("runner") or {}
    by_iter = "max_iters" in runner
    steps = request.steps
    interval = {"interval": steps if by_iter else 1, "by_epoch": not by_iter}
    changes: dict[str, Any] = {
        "work_dir": folder,
        "resume_from": None,
        "auto_resume": None,
        "device": request.section,
        "performance": None,  # chooses by time, and for the device that is here
        "runner.max_iters" if by_iter else "runner.max_epochs": steps * 2
        if by_iter
        else 2,
        "workflow": [
            [mode, steps if by_iter else 1]
            for mode, _ in cfg.get("workflow") or [("train", 1)]
        ],
        "data.workers_per_gpu": 0,
    }
    if cfg.get("seed") is None:
        changes["seed"] = 0
    own = cfg.get(request.device)
    if request.mode and isinstance(own, Mapping) and "mode" in own:
        changes[f"{request.device}.mode"] = request.mode
    for loader in _LOADERS:
        if "workers_per_gpu" in (inside(cfg, loader) or {}):
            changes[f"{loader}.workers_per_gpu"] = 0
    for key, extra in (
        ("checkpoint_config", {"out_dir": None}),
        ("evaluation", {"start": None}),
    ):
        section = cfg.get(key)
        given = {k: v for k, v in extra.items() if k in (section or {})}
        for name, value in {**interval, **given}.items():
            changes[f"{key}.{name}"] = value
    if cfg.get("log_config"):
        changes["log_config.interval"] = 1
    return changes


def smaller(cfg: Any, request: Request) -> Iterator[tuple[str, int, int]]:
    """(key, size, reduced size) of what would take too long as it is."""
    limits = {
        f"{at}.{name}": request.samples
        for at in ("data", *_LOADERS)
        for name in BATCHES
    }
    for at in ("optimizer_config", "device", "ipu"):
        limits[f"{at}.cumulative_iters"] = _MOST
        limits[f"{at}.replicas"] = _MOST
    for key, limit in limits.items():
        size = inside(cfg, key)
        if isinstance(size, int) and size > limit:
            yield key, size, limit
