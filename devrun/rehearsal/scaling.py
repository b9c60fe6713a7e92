"""What a training takes of each of many devices: memory, and bytes sent.

They are those of a rank on tensors without values (`ranks`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any

from devrun.config.imports import import_custom, import_named, search_folders
from devrun.errors import ConfigError, DevrunError, UnsupportedFeatureError
from devrun.probes.memory import needed
from devrun.probes.notebook import Notebook
from devrun.probes.request import Grants, Request
from devrun.rehearsal.check.child import as_asked
from devrun.rehearsal.check.parent import TIMEOUT, refusal_of, side_by_side
from devrun.rehearsal.ranks import REFUSED, Rank, rehearse_ranks

SCHEMA = "devrun.scaling/5"
MOST = 4096
"""Devices."""
MACHINE = 8
"""Devices of a machine, inside which `hybrid` shards."""
_UPDATE = "an update"


@dataclass(frozen=True)
class Forecast(Rank):
    """What a rank sends, and its bytes by kind.

    Weights, gradients, optimizer state and DDP's buckets are what is kept;
    `activations` and `gathered` (blocks while they are whole) are those of `peak`, the
    highest moment. Whether it fits with the margin of `devrun check` is None where no
    memory is given.
    """

    sent: float
    weights: int
    gradients: int
    optimizer_state: int
    activations: int
    gathered: int
    buckets: int
    peak: int
    fits: bool | None


@dataclass(frozen=True)
class Scaling:
    """The result of `scaling`; `left_out` says why a strategy is not there."""

    config: str
    devices: int
    samples: int
    """Of a micro-batch of one device."""
    micro_batches: int
    strategies: list[Forecast]
    left_out: dict[str, str] = field(default_factory=dict)
    schema: str = SCHEMA

    @property
    def nothing_fits(self) -> bool:
        return all(one.fits is False for one in self.strategies)

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def scaling(
    cfg: Any,
    grants: Grants,
    devices: int,
    *,
    memory: int | None = None,
    timeout: float = TIMEOUT,
) -> Scaling:
    """Say what `cfg` takes on `devices`, each with the samples of one.

    Args:
        cfg: a checked config; nothing in its work_dir is touched.
        grants: what it may import and call.
        memory: bytes of a device.
        timeout: seconds for one process.

    Raises:
        ConfigError: no such number of devices.
        DevrunError: as the training would, or the model needs values to be built.
    """
    if not 1 <= devices <= MOST:
        raise ConfigError(f"--devices must be 1 to {MOST}, got {devices}")
    ranks = _ranks(devices)
    request = Request(cfg, grants, "cpu", "cpu")
    (notes,) = side_by_side([request], timeout, partial(in_child, ranks))
    if notes.refused is not None:
        raise refusal_of(notes.refused)
    update: Any = notes.facts.get(_UPDATE)
    if update is None:
        raise DevrunError("; ".join(found.why for found in notes.findings) or "lost")
    found, left_out = [], {}
    for rank, sums in zip(ranks, update.pop("ranks")):
        if REFUSED in sums:
            left_out[rank.strategy] = sums[REFUSED]
            continue
        fits = None if memory is None else needed(sums["peak"]) <= memory
        found.append(Forecast(**asdict(rank), **sums, fits=fits))
    if not found:
        raise UnsupportedFeatureError(left_out["ddp"])
    return Scaling(
        config=grants.file,
        devices=devices,
        **update,
        strategies=found,
        left_out=left_out,
    )


def in_child(ranks: list[Rank], request: Request, note: Notebook, left: float) -> None:
    """The work of the process."""
    cfg, grants = request.cfg, request.grants
    with as_asked(grants):
        try:
            import_named(grants.imports, grants.file)
            folders = search_folders(grants.file) if grants.everything else ()
            import_custom(cfg.copy(), folders)
            if isinstance(cfg.get("parallel"), Mapping):
                # for as many processes as the user has: here each rank has its own
                cfg.merge_from_dict({"parallel.mesh": None})
            note.fact(_UPDATE, rehearse_ranks(request, ranks, note, left))
            note.done()
        except DevrunError as error:
            note.refused(error)


def _ranks(devices: int) -> list[Rank]:
    """Those that the number admits, the simplest first."""
    found = [Rank("ddp", devices, 1)]
    machines, left = divmod(devices, MACHINE)
    if machines > 1 and not left:
        found.append(Rank("hybrid", machines, MACHINE))
    if devices > 1:
        found.append(Rank("fsdp", 1, devices))
    return found
