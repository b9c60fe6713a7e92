"""What a config asks of CUDA, wherever MMCV or devrun keeps it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from devrun.config.tree import where

_FLAGS = ("deterministic",)
_BATCHES = ("samples_per_gpu", "batch_size", "imgs_per_gpu")


def asked_of(cfg: Mapping[str, Any], device: str) -> dict[str, Any]:
    """The options that `device` would be given."""
    found = {name: True for name in _FLAGS if cfg.get(name)}
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
        data = cfg.get("data") or {}
        update = cfg.get("optimizer_config") or {}
        accumulate = update.get("cumulative_iters") or 1
        for prefix, section in (
            ("data.train_dataloader", data.get("train_dataloader")),
            ("data", data),
        ):
            for name in _BATCHES:
                size = section.get(name) if isinstance(section, Mapping) else None
                if isinstance(size, int):
                    origin = where(section, name).origin
                    site = None if origin is None else str(origin)
                    pieces = update.get("micro_batch")
                    if isinstance(pieces, int):
                        size = min(size, pieces)
                    return cls(size, f"{prefix}.{name}", accumulate, site)
        return None
