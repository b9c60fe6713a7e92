"""What is different between a run and the one it goes on with, and what that means.

A difference is `fatal` where the resumed run would be another experiment: the model,
its loss, the kind of optimizer, what the data is and in which order it comes. Others
are shown.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from devrun.checkpoint import environment
from devrun.errors import CheckpointError
from devrun.run import Device, Run
from devrun.runners.position import loader_facts
from devrun.runners.saved import SavedRun
from devrun.runners.workflow import Workflow

ALLOW = "go back to what it was, or give --allow-changes (allow_changes=True)"

_FATAL = re.compile(
    r"(model|loss|freeze)\b|optimizer\.(type|constructor|paramwise_cfg)\b"
    r"|data\.train\b"
    r"|data(\.train_dataloader)?"
    r"\.(shuffle|drop_last|sampler|sampler_cfg|seed|batch_transform)\b"
    r"|runner\.(type|constructor)\b"
)


_FREE = ("work_dir", "resume_from", "load_from", "allow_changes", "seed")
"""Keys of a start; the seed of the run itself is compared."""
_SHOWN = 60
_ABSENT = object()


@dataclass(frozen=True)
class Change:
    """One key: what it was and what it is, both ready to be shown."""

    key: str
    old: str
    new: str
    fatal: bool

    def __str__(self) -> str:
        return f"{self.key}: {self.old} -> {self.new}"


def config_changes(
    saved: Mapping[str, Any] | None, now: Mapping[str, Any] | None
) -> list[Change]:
    """What differs, key by key; nothing where one of the two is not known."""
    if saved is None or now is None:
        return []
    old, new = dict(leaves(saved)), dict(leaves(now))
    return [
        Change(
            key,
            _shown(old.get(key, _ABSENT)),
            _shown(new.get(key, _ABSENT)),
            fatal=_FATAL.match(key) is not None,
        )
        for key in dict.fromkeys([*old, *new])
        if key not in _FREE and old.get(key, _ABSENT) != new.get(key, _ABSENT)
    ]


def compare_config(
    saved: SavedRun,
    now: Mapping[str, Any] | None,
    seed: int | None,
    logger: logging.Logger,
    *,
    allowed: bool,
) -> None:
    """Show every difference between a run and the one it would go on with.

    Args:
        seed: that the run insists on; None where it takes the checkpoint's.
        allowed: go on though this makes it another run.

    Raises:
        CheckpointError: it would be another run.
    """
    changes = config_changes(saved.config, now)
    if seed is not None and saved.seed not in (None, seed):
        changes.append(Change("seed", str(saved.seed), str(seed), fatal=True))
    fatal = [change for change in changes if change.fatal]
    if fatal and not allowed:
        listed = ", ".join(map(str, fatal[:5]))
        more = f" and {len(fatal) - 5} more" if len(fatal) > 5 else ""
        raise CheckpointError(
            f"this is not the run that wrote {str(saved.path)!r}: {listed}{more}; "
            f"{ALLOW}, or take only its weights with load_from"
        )
    for change in changes:
        level = logger.warning if change.fatal else logger.info
        level("config changed: %s", change)


def compare_data(
    flow: Workflow, saved: Sequence[Mapping[str, Any]], path: Path
) -> None:
    """Refuse other training data, or another size of the updates.

    Raises:
        CheckpointError: naming what differs.
    """
    changes = []
    for (mode, _), loader, old in zip(flow.flow, flow.loaders, saved):
        if "val" in (mode, old.get("mode")):
            continue
        new = loader_facts(loader, mode)
        changes += [
            Change(f"{name} of the training data", str(old[key]), str(new[key]), True)
            for key, name in _DATA_FACTS.items()
            if old.get(key) not in (None, new[key]) and new[key] is not None
        ]
    if changes:
        listed = ", ".join(map(str, changes))
        raise CheckpointError(
            f"this is not the run that wrote {str(path)!r}: {listed}; {ALLOW}"
        )


def log_resumed(saved: SavedRun, run: Run) -> None:
    """Say where `run` goes on, and what keeps it from being bit for bit the same."""
    if saved.by_epoch not in (None, run.state.by_epoch):
        counts = ("epochs", "iterations")
        run.logger.warning(
            "saved by a runner that counts %s, resumed by one that counts %s: the "
            "updates and the samples seen are kept, epochs and phases begin anew",
            *(counts if saved.by_epoch else reversed(counts)),
        )
    if changes := _environment_changes(saved, run.adapter, run.world_size):
        run.logger.warning(
            "resumed at the same sample, but not bit for bit: %s",
            ", ".join(map(str, changes)),
        )
    run.logger.info(
        "resumed epoch: %d, iter: %d from %s", run.epoch, run.iter, saved.path
    )


def _environment_changes(
    saved: SavedRun, device: Device, world_size: int
) -> list[Change]:
    """What keeps a resumed run from having the bits of one never stopped."""
    before = saved.environment
    now = {**environment(), "device": device.name, "emulated": device.emulated}
    keys = ("device", "emulated", "torch", "platform", "threads", "cpu_capability")
    changes = [
        Change(key, _shown(before[key]), _shown(now[key]), fatal=False)
        for key in keys
        if before.get(key) is not None and before[key] != now[key]
    ]
    if saved.ranks not in (0, world_size):
        ranks, size = str(saved.ranks), str(world_size)
        changes.append(Change("processes", ranks, size, fatal=False))
    return changes


_DATA_FACTS = {
    "dataset": "class",
    "samples": "number of samples",
    "samples_per_update": "samples an update",
}


def leaves(tree: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """(dotted key, value) of everything in a config that is no dict and no list."""
    if isinstance(tree, Mapping) and (tree or not path):
        for key, value in tree.items():
            yield from leaves(value, f"{path}.{key}" if path else str(key))
    elif isinstance(tree, (list, tuple)) and tree:
        for index, value in enumerate(tree):
            yield from leaves(value, f"{path}.{index}")
    else:
        yield path, list(tree) if isinstance(tree, tuple) else tree


def _shown(value: Any) -> str:
    text = "not set" if value is _ABSENT else repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
