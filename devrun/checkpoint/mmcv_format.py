"""MMCV's runner checkpoints: one `.pth` with `meta`, `state_dict`, `optimizer`.

`meta` has `epoch` (whole epochs done) and `iter` (updates done). MMCV's iteration
runner writes `iter_N.pth` with `iter` N - 1, so that a resumed run repeats a step;
`progress` gives N. The optimizer's state is by position there and by name here.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from devrun import __version__
from devrun.checkpoint.pickled import (
    load_pickled,
    plain,
    save_pickled,
    write_safetensors,
)
from devrun.checkpoint.reader import Checkpoint, read_checkpoint
from devrun.checkpoint.state import named_optimizer_state, positional_optimizer_state
from devrun.errors import CheckpointError

EMA_STATE = "EMAHook"
"""Under this key of the part `hooks`, `model` has the averaged weights."""


@dataclass(frozen=True)
class MmcvCheckpoint:
    """What an MMCV runner saved, as read from a file."""

    path: Path
    meta: dict[str, Any]
    state_dict: Mapping[str, Any]
    optimizer: Mapping[str, Any] | None

    @property
    def progress(self) -> tuple[int, int]:
        """(whole epochs done, updates done); CheckpointError if it has neither."""
        epoch, done = self.meta.get("epoch"), self.meta.get("iter")
        if not isinstance(epoch, int) or not isinstance(done, int):
            raise CheckpointError(
                f"{str(self.path)!r} has no epoch and iter in its meta, so a run "
                "cannot be resumed from it; take its weights with load_from"
            )
        # latest.pth is a link: the name it leads to has the number.
        named = re.fullmatch(r"iter_(\d+)\.pth", self.path.resolve().name)
        if named and "devrun_version" not in self.meta and int(named[1]) == done + 1:
            done += 1
        return epoch, done


def read_mmcv_checkpoint(
    path: str | os.PathLike[str],
    map_location: Any = None,
    *,
    allow_pickle: bool = False,
) -> MmcvCheckpoint:
    """The runner checkpoint in a `.pth` file; `allow_pickle` as in `load_pickled`.

    Raises:
        CheckpointError: missing, damaged, refused, or without a `state_dict`.
    """
    content = load_pickled(path, map_location, allow_pickle=allow_pickle)
    if not isinstance(content, Mapping) or not isinstance(
        content.get("state_dict"), Mapping
    ):
        raise CheckpointError(
            f"{str(path)!r} has no state_dict, so it is not of an MMCV runner; take "
            "bare weights with load_from"
        )
    meta, optimizer = content.get("meta"), content.get("optimizer")
    return MmcvCheckpoint(
        Path(path),
        dict(meta) if isinstance(meta, Mapping) else {},
        content["state_dict"],
        optimizer if isinstance(optimizer, Mapping) else None,
    )


def mmcv_optimizer_tree(
    model: nn.Module, optimizer: Any, checkpoint: MmcvCheckpoint
) -> dict[str, Any]:
    """The optimizer state of an MMCV checkpoint, by name.

    Its positions are those of an optimizer built in the same way for the same model.

    Raises:
        CheckpointError: there is none, or it does not fit.
    """
    saved = checkpoint.optimizer
    if saved is None:
        raise CheckpointError(
            f"{str(checkpoint.path)!r} has no optimizer state; resume with "
            "resume_optimizer=False, or take its weights with load_from"
        )
    ours = optimizer if isinstance(optimizer, Mapping) else {"one": optimizer}
    theirs = {"one": saved} if {"state", "param_groups"} <= saved.keys() else saved
    if ours.keys() != theirs.keys():
        raise CheckpointError(
            f"{str(checkpoint.path)!r} has optimizers {list(theirs)}, the run "
            f"{list(ours)}"
        )
    trees = {
        key: named_optimizer_state(model, one, theirs[key]) for key, one in ours.items()
    }
    return {"optimizers": trees} if ours is optimizer else trees["one"]


def write_mmcv_checkpoint(
    path: str | os.PathLike[str],
    state_dict: Mapping[str, Any],
    optimizer: Mapping[str, Any] | None = None,
    meta: Mapping[str, Any] | None = None,
) -> None:
    """Write a `.pth` that MMCV's `load_checkpoint` and `resume` take.

    Args:
        state_dict: of the model, on the CPU.
        optimizer: a positional state dict, or a dict of them.
        meta: `epoch` and `iter` done, and anything plain.

    Raises:
        CheckpointError: a value that could not be loaded again.
        StorageError: the disk refused.
    """
    facts = {"devrun_version": __version__, "time": time.asctime(), **(meta or {})}
    content = plain({"meta": facts}, "checkpoint")
    content["state_dict"] = state_dict
    if optimizer is not None:
        content["optimizer"] = plain(optimizer, "optimizer")
    save_pickled(content, path)


def averaged_weights(found: Checkpoint) -> Mapping[str, Any] | None:
    """The weights that an EMAHook evaluated with, of what `read_checkpoint` gave.

    States have the names of their hooks, which may be those of a subclass.
    """
    hooks = found.get("hooks")
    states = hooks.items() if isinstance(hooks, Mapping) else ()
    kept = next((v for name, v in states if str(name).endswith(EMA_STATE)), None)
    weights = kept.get("model") if isinstance(kept, Mapping) else None
    return weights if isinstance(weights, Mapping) else None


def needed_average(
    found: Checkpoint, source: str | os.PathLike[str]
) -> Mapping[str, Any]:
    """`averaged_weights` of the checkpoint `source`; CheckpointError without any."""
    weights = averaged_weights(found)
    if weights is None:
        raise CheckpointError(
            f"{str(source)!r} has no averaged weights: its run had no EMAHook"
        )
    return weights


FORMATS = {"mmcv": ".pth", "torch": ".pth", "safetensors": ".safetensors"}
"""Suffix of the files that `export_weights` writes."""


def export_weights(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    *,
    form: str = "mmcv",
    averaged: bool = False,
) -> None:
    """Write the devrun checkpoint `source` as a file for other programs.

    Args:
        form: `mmcv`, a `.pth` with the weights, the optimizer and the numbers of epochs
            and updates, which MMCV's runners take; `torch`, a `.pth` with the weights
            alone, as `torch.save(model.state_dict())`; `safetensors`, the same in that
            format. Random streams, the place inside an epoch and the state of hooks
            have no place in any of them.
        averaged: take the weights that an EMAHook evaluated with, without optimizer.

    Raises:
        CheckpointError: damaged, or without weights or averaged ones.
        StorageError: the disk refused.
    """
    found = read_checkpoint(source)
    weights: Any = found["model"]
    if averaged:
        weights = {**weights, **needed_average(found, source)}
    if form == "safetensors":
        write_safetensors(weights, target)
        return
    if form == "torch":
        save_pickled(weights, target)
        return
    optimizer: Any = None
    if "optimizer" in found and not averaged:
        optimizer = positional_optimizer_state(found["optimizer"])
    meta = found.get("trainer", {}).get("meta") or {}
    write_mmcv_checkpoint(target, weights, optimizer, meta)
