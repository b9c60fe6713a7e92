"""Keys of a config: where they stand, and how a change of them is written."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import yaml

from devrun.config.tree import inside, where
from devrun.data.spec import BATCHES
from devrun.python38 import unsuffixed

_SIZES = [f"{at}.{n}" for at in ("data.train_dataloader", "data") for n in BATCHES]


def line_of(cfg: Any, *keys: str) -> str | None:
    """`file:line` of the first of the dotted keys that the config has."""
    for key in keys:
        parent, _, name = key.rpartition(".")
        owner = inside(cfg, parent) if parent else cfg
        if hasattr(owner, "get") and name in owner:
            origin = where(owner, name).origin
            if origin is not None:
                return str(origin)
    return None


def given(cfg: Any, *keys: str) -> str:
    """The first of the dotted keys that the config has, else the last."""
    return next((key for key in keys if inside(cfg, key) is not None), keys[-1])


def asked_of(cfg: Mapping[str, Any], device: str) -> dict[str, Any]:
    """The options that `device` would be given."""
    found: dict[str, Any] = {"deterministic": True} if cfg.get("deterministic") else {}
    for section in (cfg.get(device), cfg.get("device")):
        if isinstance(section, Mapping):
            kind = str(section.get("type", device)).partition(":")[0]
            if kind in (device, "auto"):
                found.update(section)
    return found


def pasted(changes: Mapping[str, Any]) -> str:
    """Changes of a config as one line, each `key: value`."""
    return "; ".join(f"{key}: {_flow(value)}" for key, value in changes.items())


def _flow(value: Any) -> str:
    text = yaml.safe_dump(value, default_flow_style=True, width=10_000, sort_keys=False)
    return unsuffixed(text.strip(), "\n...").strip()


@dataclass(frozen=True)
class BatchSize:
    """The samples of one batch, and where the config says so.

    Attributes:
        key: of the config.
        accumulate: batches of an update.
        site: `file:line`.
    """

    samples: int
    key: str
    accumulate: int
    site: str | None

    @classmethod
    def of(cls, cfg: Mapping[str, Any]) -> BatchSize | None:
        """That of the training; None where no key says it."""
        key = next((key for key in _SIZES if isinstance(inside(cfg, key), int)), None)
        if key is None:
            return None
        update = cfg.get("optimizer_config") or {}
        accumulate, pieces = update.get("cumulative_iters"), update.get("micro_batch")
        samples = inside(cfg, key)
        if isinstance(pieces, int):
            samples = min(samples, pieces)
        return cls(samples, key, accumulate or 1, line_of(cfg, key))
