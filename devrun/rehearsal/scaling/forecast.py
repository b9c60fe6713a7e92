"""`scaling`: the time of an update and the memory of a rank for a config, as data."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from copy import deepcopy
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from devrun.config.imports import import_custom, import_named, search_folders
from devrun.devices.resolve import resolve_device
from devrun.errors import ConfigError, DevrunError
from devrun.rehearsal.check.child import as_asked
from devrun.rehearsal.check.cuda.memory import needed
from devrun.rehearsal.check.notebook import Notebook, Notes
from devrun.rehearsal.check.parent import TIMEOUT, refusal_of, side_by_side
from devrun.rehearsal.check.request import Grants, Request
from devrun.rehearsal.peaks import Peaks, load
from devrun.rehearsal.scaling.cost import Prediction, Work, predict
from devrun.rehearsal.scaling.links import Fabric, fabric_of, fitted
from devrun.rehearsal.scaling.published import FABRICS, USUAL
from devrun.rehearsal.scaling.ranks import (
    MEMORY,
    WORK,
    Rank,
    part_of,
    rehearse_ranks,
)
from devrun.rehearsal.scaling.timing import SECONDS, time_updates

SCHEMA = "devrun.scaling/1"
MOST = 4096
"""Devices; beyond, a ring is no model of what a library does."""
_UPDATES = 4
"""Timed, where nothing is known of the device."""
_REDUCED = re.compile(r"(\d+) MiB over (\d+) processes")


@dataclass(frozen=True)
class Compute:
    """What one device takes for its samples: how it is known, in words, and what it is.

    `seconds` is of an update, `flops` of its matrix products and convolutions.
    """

    seconds: float
    flops: int
    how: str


@dataclass(frozen=True)
class RankMemory:
    """Bytes of the rank with the largest shards; `peak` is the highest moment.

    Weights, gradients, optimizer state and DDP's buckets are what is kept;
    `activations` and `gathered` (blocks while they are whole) are those of the peak.
    """

    strategy: str
    devices: int
    replicate: int
    shard: int
    tensor: int
    weights: int
    gradients: int
    optimizer_state: int
    activations: int
    gathered: int
    buckets: int
    peak: int
    fits: bool | None
    """With the margin of `devrun check`; None where no memory was given."""


@dataclass(frozen=True)
class Scaling:
    """The result of `scaling`; `left_out` says why a strategy is not there."""

    config: str
    devices: int
    samples: int
    """Of a micro-batch of one device."""
    micro_batches: int
    compute: Compute
    link: Fabric
    gradients: int
    """Bytes."""
    predictions: list[Prediction]
    memory: list[RankMemory]
    advice: str
    left_out: dict[str, str] = field(default_factory=dict)
    schema: str = SCHEMA

    @property
    def nothing_fits(self) -> bool:
        return bool(self.memory) and all(one.fits is False for one in self.memory)

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def scaling(
    cfg: Any,
    grants: Grants,
    devices: int,
    *,
    link: str | None = None,
    memory: int | None = None,
    compute: tuple[float, str] | None = None,
    device: str = "auto",
    timeout: float = TIMEOUT,
) -> Scaling:
    """Predict `cfg` on 1, 2, 4 ... `devices`, each with the samples of one.

    Args:
        cfg: a checked config; nothing in its work_dir is touched.
        grants: what it may import and call.
        link: as `fabric_of` takes it; by default the one that `devices --bench` kept,
            or else `USUAL`.
        memory: bytes of a device.
        compute: (seconds of an update, "s") or (FLOP a second, "FLOP/s"); by default
            the matrix product that `devices --bench` kept for `device`, or else
            updates of a few samples are timed here.
        timeout: seconds for one process.

    Raises:
        ConfigError: no such number of devices, or the link does not join them.
        DevrunError: as the training would, or the model needs values to be built.
    """
    if not 1 <= devices <= MOST:
        raise ConfigError(f"--devices must be 1 to {MOST}, got {devices}")
    peaks = None if link is not None and compute is not None else _kept(device)
    if link is None:
        fabric = _measured(peaks) or FABRICS[USUAL]
    else:
        fabric = fabric_of(link, FABRICS)
    if fabric.most is not None and devices > fabric.most:
        raise ConfigError(
            f"--link {fabric.name} joins {fabric.most} devices at the most, got "
            f"--devices {devices}"
        )
    ranks = _ranks(fabric, devices)
    asked = _Asked(cfg, grants, ranks, timed=compute is None and peaks is None)
    (notes,) = side_by_side([asked], timeout, in_child)
    facts, sums = _fact(notes, WORK), _fact(notes, MEMORY)
    whole = _compute(facts, compute, peaks, notes.facts.get(SECONDS))
    work = _work(facts, whole)
    refused = {n: one["refused"] for n, one in sums.items() if "refused" in one}
    able = [rank for rank in ranks if rank.strategy not in refused]
    memories = [_memory(rank, sums[rank.strategy], memory) for rank in able]
    counts = [1 << n for n in range(devices.bit_length()) if 1 << n < devices]
    predictions = [
        predict(work, fabric, strategy, count)
        for strategy in (rank.strategy for rank in able)
        for count in [*counts, devices]
        if strategy in [rank.strategy for rank in _ranks(fabric, count)]
    ]
    return Scaling(
        config=grants.file,
        devices=devices,
        samples=facts["samples"],
        micro_batches=work.micro_batches,
        compute=whole,
        link=fabric,
        gradients=work.gradients,
        predictions=predictions,
        memory=memories,
        advice=_advice(memories, predictions, memory),
        left_out=refused,
    )


@dataclass(frozen=True)
class _Asked:
    """What the process is asked for: ranks, and whether updates are timed too."""

    cfg: Any
    grants: Grants
    ranks: tuple[Rank, ...]
    timed: bool


def in_child(asked: _Asked, note: Notebook, seconds: float) -> None:
    """The work of the process."""
    grants = asked.grants
    with as_asked(grants):
        request = Request(
            asked.cfg, grants, "cpu", "cpu", seen_from_cpu=True, steps=_UPDATES
        )
        try:
            import_named(grants.imports, grants.file)
            folders = search_folders(grants.file) if grants.everything else ()
            import_custom(asked.cfg.copy(), folders)
            parallel = asked.cfg.get("parallel")
            if isinstance(parallel, Mapping) and "mesh" in parallel:
                # for as many processes as the user has: here each rank has its own
                asked.cfg.merge_from_dict({"parallel.mesh": None})
            own = replace(request, cfg=deepcopy(asked.cfg))
            rehearse_ranks(own, asked.ranks, note, seconds)
            if asked.timed:
                time_updates(request, note)
            note.done()
        except DevrunError as error:
            note.refused(error)


def _ranks(fabric: Fabric, devices: int) -> tuple[Rank, ...]:
    """Those that the fabric and the number admit."""
    box = min(fabric.box or devices, devices)
    boxes, left = divmod(devices, box)
    found = [Rank("ddp", devices, 1)]
    if devices > 1:
        found.append(Rank("fsdp", 1, devices))
    if boxes > 1 and box > 1 and not left:
        found.append(Rank("hybrid", boxes, box))
    if devices > 1 and fabric.box is not None and not left:
        # matrices are divided in a box, which has fast links
        found.append(Rank("tensor", 1, boxes, box))
    return tuple(rank for rank in found if rank.strategy in fabric.strategies)


def _fact(notes: Notes, name: str) -> Any:
    """What the process wrote down.

    Raises:
        DevrunError: it was refused, or lost.
    """
    if notes.refused is not None:
        raise refusal_of(notes.refused)
    if name not in notes.facts:
        raise DevrunError("; ".join(found.why for found in notes.findings) or "lost")
    return notes.facts[name]


def _kept(device: str) -> Peaks | None:
    adapter = resolve_device(device)
    with ExitStack() as undo:
        undo.callback(adapter.teardown)
        adapter.setup(None)
        return load(adapter)


def _measured(peaks: Peaks | None) -> Fabric | None:
    """The link on which processes were measured to sum their tensors."""
    rows = [] if peaks is None else peaks.measured
    times: list[tuple[float, float]] = []
    ranks = 0
    for row in rows:
        match = _REDUCED.fullmatch(row.shape)
        if row.kind == "all_reduce" and match:
            size, ranks = float(int(match[1]) << 20), int(match[2])
            # bus bandwidth, as it is kept: bytes x 2 (n - 1)/n
            times.append((size, size * 2 * (ranks - 1) / ranks / row.median / 1e9))
    if len(times) < 2:
        return None
    source = f"all-reduce over {ranks} processes, kept by devrun devices --bench"
    return Fabric("measured", fitted(times, ranks), source=source)


def _compute(
    facts: Any,
    given: tuple[float, str] | None,
    peaks: Peaks | None,
    timed: Any,
) -> Compute:
    flops = (facts["forward flops"] + facts["backward flops"]) * facts["micro batches"]
    if given is not None:
        value, unit = given
        if unit == "s":
            return Compute(value, flops, "given")
        return Compute(flops / value, flops, f"at {value:.3g} FLOP/s, given")
    if timed is not None:
        scale = facts["samples"] * facts["micro batches"] / timed["samples"]
        how = f"timed here, with {timed['samples']} samples of an update"
        return Compute(timed["seconds"] * scale, flops, how)
    dtype = facts["precision"]
    peak = None if peaks is None else peaks.peak(dtype)
    if peak is None:
        raise ConfigError(
            f"no speed of {dtype} products was measured here: run devrun devices "
            "--bench, or give --compute 120ms or 400TFLOP/s"
        )
    how = f"at {peak:.3g} GFLOP/s of {dtype} products, kept by devrun devices --bench"
    return Compute(flops / peak / 1e9, flops, how)


def _work(facts: Any, compute: Compute) -> Work:
    """The forward and the backward pass share the time as their FLOPs do."""
    forward, backward = facts["forward flops"], facts["backward flops"]
    share = forward / (forward + backward) if forward + backward else 1 / 3
    each = compute.seconds / facts["micro batches"]
    return Work(
        forward=each * share,
        backward=each * (1 - share),
        optimizer=0.0,
        blocks=tuple(map(part_of, facts["blocks"])),
        rest=part_of(facts["rest"]),
        micro_batches=facts["micro batches"],
        gathered=1.0 if facts["precision"] == "fp32" else 0.5,
    )


def _memory(rank: Rank, sums: Any, memory: int | None) -> RankMemory:
    return RankMemory(
        **asdict(rank),
        devices=rank.devices,
        weights=sums["weights"],
        gradients=sums["gradients"],
        optimizer_state=sums["optimizer state"],
        activations=sums["activations"],
        gathered=sums.get("gathered", 0),
        buckets=sums.get("buckets", 0),
        peak=sums["peak"],
        fits=None if memory is None else needed(sums["peak"]) <= memory,
    )


def _advice(
    memories: Sequence[RankMemory],
    predictions: Sequence[Prediction],
    memory: int | None,
) -> str:
    """The fastest strategy of those that fit, or what to do where none does."""
    fitting = [one for one in memories if one.fits is not False]
    if not fitting:
        least = min(memories, key=lambda one: one.peak)
        return (
            f"none fits: {least.strategy} comes nearest; gradient_checkpointing: true, "
            "fewer data.samples_per_gpu with optimizer_config.cumulative_iters, or "
            "more devices"
        )
    devices = fitting[0].devices
    times = {p.strategy: p for p in predictions if p.devices == devices}
    best = min(fitting, key=lambda one: times[one.strategy].seconds)
    found = times[best.strategy]
    sizes = {n: getattr(best, n) for n in ("replicate", "shard", "tensor")}
    mesh = ", ".join(f"{n}: {size}" for n, size in sizes.items() if size > 1)
    which = f"parallel: {{type: fsdp, mesh: {{{mesh}}}}}"
    if best.strategy == "ddp":
        which = "parallel: {type: ddp}"
    why = "the fastest" if memory is None else "the fastest that fits"
    return f"{which}: {why}, {found.efficiency:.0%} efficient on {devices} devices"
