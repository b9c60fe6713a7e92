"""What is different between a run and the one it goes on with, and what that means.

A difference is `fatal` where the resumed run would be another experiment: the model,
its loss, the kind of optimizer, what the data is and in which order it comes. Others
are shown. What only says where things are written, or how fast, is passed over.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from devrun.checkpoint import environment

__all__ = [
    "ALLOW",
    "Change",
    "config_changes",
    "environment_changes",
    "leaves",
    "refusal",
]

ALLOW = "go back to what it was, or give --allow-changes (allow_changes=True)"

_FATAL = re.compile(
    r"model\b|loss\b|optimizer\.(type|constructor|paramwise_cfg)\b"
    r"|data\.(train|shuffle|drop_last|sampler|sampler_cfg|seed)\b"
    r"|data\.train_dataloader\.(shuffle|drop_last|sampler|sampler_cfg|seed)\b"
    r"|runner\.(type|constructor)\b"
)
_FREE = re.compile(
    r"(work_dir|resume_from|load_from|auto_resume|allow_changes|log_config|log_level"
    r"|seed"  # the run's own seed is compared itself
    r"|checkpoint_config|evaluation|launcher|dist_params|timer_config|watchdog"
    r"|device|cpu|cuda|hpu|ipu|ipu_replicas|cudnn_benchmark|omp_num_threads"
    r"|custom_imports|data\.(val|test|val_dataloader|test_dataloader)"
    r"|data(\.train_dataloader)?\.(num_workers|workers_per_gpu|pin_memory"
    r"|persistent_workers|prefetch_factor|timeout|multiprocessing_context"
    r"|batch_size|samples_per_gpu))\b"  # the size of an update is compared itself
)
_SHOWN = 60


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
        if old.get(key, _ABSENT) != new.get(key, _ABSENT) and not _FREE.match(key)
    ]


def environment_changes(
    saved: Mapping[str, Any], device: str, emulated: bool
) -> list[Change]:
    """What keeps a resumed run from having the bits of one never stopped."""
    now = {**environment(), "device": device, "emulated": emulated}
    keys = ("device", "emulated", "torch", "platform", "threads", "cpu_capability")
    return [
        Change(key, _shown(saved[key]), _shown(now[key]), fatal=False)
        for key in keys
        if saved.get(key) is not None and saved[key] != now[key]
    ]


def refusal(path: Any, changes: list[Change]) -> str:
    """The one line that refuses `changes`."""
    listed = ", ".join(map(str, changes[:5]))
    more = f" and {len(changes) - 5} more" if len(changes) > 5 else ""
    return (
        f"this is not the run that wrote {str(path)!r}: {listed}{more}; {ALLOW}, "
        "or take only its weights with load_from"
    )


class _Absent:
    def __repr__(self) -> str:
        return "not set"


_ABSENT = _Absent()


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
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
