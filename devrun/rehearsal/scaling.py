"""What a training takes on more devices than are here: memory, bytes sent, seconds.

Memory and bytes are those of a rank on tensors without values (`ranks`). Seconds are
measured or not there: of an update those of the training's own first ones, on a device
that is here, and of sending the bytes over the rate that `devrun devices --bench` kept.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any

from devrun.config.imports import import_custom, import_named, search_folders
from devrun.devices.resolve import resolve_device
from devrun.errors import ConfigError, DevrunError, UnsupportedFeatureError
from devrun.hooks.base import Hook
from devrun.probes.memory import needed
from devrun.probes.notebook import Notebook
from devrun.probes.request import Grants, Request
from devrun.rehearsal.bench import load
from devrun.rehearsal.check.child import as_asked
from devrun.rehearsal.check.parent import TIMEOUT, refusal_of, side_by_side
from devrun.rehearsal.ranks import REFUSED, Rank, rehearse_ranks
from devrun.run import Run
from devrun.runners.trial import trial
from devrun.text import one_line

SCHEMA = "devrun.scaling/4"
MOST = 4096
"""Devices."""
UPDATES = 6
"""That are timed; the first, which compiles and allocates, does not count."""
MACHINE = 8
"""Devices of a machine, inside which `hybrid` shards."""
_UPDATE, _TIMED = "an update", "seconds of an update"


@dataclass(frozen=True)
class Forecast(Rank):
    """What a rank sends, and its bytes by kind.

    Weights, gradients, optimizer state and DDP's buckets are what is kept;
    `activations` and `gathered` (blocks while they are whole) are those of `peak`, the
    highest moment. Seconds of sending, and whether it fits with the margin of `devrun
    check`, are None where no rate was measured and no memory given.
    """

    sent: float
    sending: float | None
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
    """The result of `scaling`; `left_out` says why a strategy or time is not there."""

    config: str
    devices: int
    samples: int
    """Of a micro-batch of one device."""
    micro_batches: int
    computing: float | None
    """Seconds of an update of one device, measured; None without one."""
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
    device: str | None = None,
    timeout: float = TIMEOUT,
) -> Scaling:
    """Say what `cfg` takes on `devices`, each with the samples of one.

    Args:
        cfg: a checked config; nothing in its work_dir is touched.
        grants: what it may import and call.
        memory: bytes of a device.
        device: one that is here, on which the first updates are timed; None times none.
        timeout: seconds for one process.

    Raises:
        ConfigError: no such number of devices.
        DevrunError: as the training would, or the model needs values to be built.
    """
    if not 1 <= devices <= MOST:
        raise ConfigError(f"--devices must be 1 to {MOST}, got {devices}")
    rate = None if device is None else _rate(device)
    ranks = _ranks(devices)
    request = Request(cfg, grants, "cpu", "cpu")
    (notes,) = side_by_side([request], timeout, partial(in_child, ranks, device))
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
        sending = sums["sent"] / rate if rate else None
        fits = None if memory is None else needed(sums["peak"]) <= memory
        found.append(Forecast(**asdict(rank), **sums, sending=sending, fits=fits))
    if not found:
        raise UnsupportedFeatureError(left_out["ddp"])
    timed: Any = notes.facts.get(_TIMED, "the process took too long, or was lost")
    if device is not None and isinstance(timed, str):
        left_out["computing"] = timed
    return Scaling(
        config=grants.file,
        devices=devices,
        **update,
        computing=timed if isinstance(timed, float) else None,
        strategies=found,
        left_out=left_out,
    )


def in_child(
    ranks: list[Rank], device: str | None, request: Request, note: Notebook, left: float
) -> None:
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
            one = replace(request, cfg=deepcopy(cfg))
            note.fact(_UPDATE, rehearse_ranks(one, ranks, note, left))
            if device is not None:  # after all that forks
                note.fact(_TIMED, _timed(cfg, device))
            note.done()
        except DevrunError as error:
            note.refused(error)


def _timed(cfg: Any, device: str) -> float | str:
    """Seconds of an update of the training on `device`, or why there are none."""
    cfg.merge_from_dict({"device": device})
    clock = _Clock()
    try:
        with trial(cfg, UPDATES, progress=False) as training:
            training.runner.register_hook(clock)
            training.run()
    except Exception as error:  # noqa: BLE001 - such as a batch that does not fit
        return one_line(error)
    spans = [after - before for before, after in zip(clock.ends, clock.ends[1:])]
    return statistics.median(spans) if spans else "it has a single update"


class _Clock(Hook):
    """When each update was over, on the device too."""

    priority = "LOWEST"

    def __init__(self) -> None:
        self.ends: list[float] = []

    def after_train_iter(self, runner: Run) -> None:
        runner.adapter.synchronize()
        self.ends.append(time.perf_counter())


def _ranks(devices: int) -> list[Rank]:
    """Those that the number admits, the simplest first."""
    found = [Rank("ddp", devices, 1)]
    machines, left = divmod(devices, MACHINE)
    if machines > 1 and not left:
        found.append(Rank("hybrid", machines, MACHINE))
    if devices > 1:
        found.append(Rank("fsdp", 1, devices))
    return found


def _rate(device: str) -> float | None:
    """Bytes a second that a rank was measured to send, in the worst all-reduce."""
    peaks = load(resolve_device(device))
    rows = [] if peaks is None else peaks.measured
    # what is kept counts 2 (n - 1)/n for each byte, which is what a ring sends
    return min((r.median * 1e9 for r in rows if r.kind == "all_reduce"), default=None)
