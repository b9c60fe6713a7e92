"""What a config asks of CUDA, wherever MMCV or devrun keeps it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from devrun.config.tree import inside
from devrun.rehearsal.check.keys import line_of
from devrun.runners.trial import BATCHES

_SIZES = [f"{at}.{n}" for at in ("data.train_dataloader", "data") for n in BATCHES]


def asked_of(cfg: Mapping[str, Any], device: str) -> dict[str, Any]:
    """The options that `device` would be given."""
    found: dict[str, Any] = {"deterministic": True} if cfg.get("deterministic") else {}
    for section in (cfg.get(device), cfg.get("device")):
        if isinstance(section, Mapping):
            kind = str(section.get("type", device)).partition(":")[0]
            if kind in (device, "auto"):
                found.update(section)
    return found


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
