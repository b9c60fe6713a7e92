"""What a training takes on more devices than are here: memory, bytes sent, seconds.

The memory is that of one rank of many, built on tensors without values (`ranks`). The
bytes are counted. Seconds are measured or not there: those of an update are of the
training's own first ones, on a device that is here and was named; those of sending are
the bytes over the rate that `devrun devices --bench` kept of it.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from copy import deepcopy
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from typing import Any

import torch

from devrun.config.imports import import_custom, import_named, search_folders
from devrun.devices.resolve import resolve_device
from devrun.errors import ConfigError, DevrunError
from devrun.hooks.base import Hook
from devrun.rehearsal.bench import load
from devrun.rehearsal.check.child import as_asked
from devrun.rehearsal.check.cuda.memory import needed
from devrun.rehearsal.check.notebook import Notebook, Notes
from devrun.rehearsal.check.parent import TIMEOUT, refusal_of, side_by_side
from devrun.rehearsal.check.request import Grants, Request
from devrun.rehearsal.ranks import MEMORY, WORK, Rank, rehearse_ranks
from devrun.run import Run
from devrun.runners.trial import trial
from devrun.text import one_line

SCHEMA = "devrun.scaling/3"
MOST = 4096
"""Devices."""
UPDATES = 6
"""That are timed; the first, which compiles and allocates, does not count."""
TIMED = "seconds of an update"
MACHINE = 8
"""Devices of a machine, inside which `hybrid` shards and `tensor` divides matrices."""


@dataclass(frozen=True)
class Weight:
    """A parameter: `rows` of its first dimension, `size` in bytes, if it learns."""

    rows: int
    size: int
    trained: bool = True

    def padded(self, shards: int) -> float:
        """Bytes when each of so many shards has as many rows as the largest."""
        rows = max(self.rows, 1)
        return self.size * math.ceil(rows / shards) * shards / rows


@dataclass(frozen=True)
class Work:
    """What the exchanges of an update depend on.

    Attributes:
        blocks: weights that FSDP gathers for the forward and again for the backward
            pass.
        rest: weights that are in no block, gathered once.
        outputs: bytes that the blocks hand on in a micro-batch of one device.
        micro_batches: of an update; only the last exchanges gradients.
        gathered: bytes that FSDP gathers for each of a weight: a half where those of
            fp32 travel as bf16.
    """

    blocks: tuple[Weight, ...]
    rest: tuple[Weight, ...]
    outputs: int = 0
    micro_batches: int = 1
    gathered: float = 1.0


def sent(work: Work, rank: Rank) -> float:
    """Bytes that each rank sends in an update, when collectives are rings.

    An all-gather and a reduce-scatter of S bytes among n ranks send (n - 1)/n S each,
    an all-reduce as much as both. `ddp` reduces the gradients. A sharded rank gathers
    weights and scatters gradients (Rajbhandari et al. 2020, "ZeRO", section 7.2.2),
    `hybrid` then reduces its shard among the copies. `tensor` adds four all-reduces of
    activations for a block (Shoeybi et al. 2019, "Megatron-LM", section 3).
    """

    def size(weights: Sequence[Weight]) -> float:
        return sum(weight.padded(rank.shard) for weight in weights) / rank.tensor

    gathers = 2 * size(work.blocks) + size(work.rest)
    gathers *= work.gathered * work.micro_batches
    gradients = size([w for w in (*work.blocks, *work.rest) if w.trained])
    activations = 4 * work.micro_batches * work.outputs * rank.tensor
    return (
        _ring(gathers + gradients, rank.shard)
        + 2 * _ring(gradients / rank.shard, rank.replicate)
        + 2 * _ring(activations, rank.tensor)
    )


def _ring(size: float, ranks: int) -> float:
    return size * (ranks - 1) / ranks


@dataclass(frozen=True)
class Forecast:
    """One strategy: what each rank sends, and bytes of the one with the largest shards.

    Weights, gradients, optimizer state and DDP's buckets are what is kept;
    `activations` and `gathered` (blocks while they are whole) are those of `peak`, the
    highest moment.
    """

    strategy: str
    replicate: int
    shard: int
    tensor: int
    sent: float
    sending: float | None
    """Seconds of that at the measured rate; None where none was measured."""
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
    """The result of `scaling`; `left_out` says why a strategy or time is not there."""

    config: str
    devices: int
    samples: int
    """Of a micro-batch of one device."""
    micro_batches: int
    precision: str
    flops: int
    """Of an update of one device: matrix products and convolutions."""
    computing: float | None
    """Seconds of an update of one device, measured; None without one."""
    strategies: list[Forecast]
    advice: str
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
    (notes,) = side_by_side([_Asked(cfg, grants, ranks, device)], timeout, in_child)
    facts, sums = _fact(notes, WORK), _fact(notes, MEMORY)
    work = Work(
        blocks=tuple(Weight(*one) for one in facts["blocks"]),
        rest=tuple(Weight(*one) for one in facts["rest"]),
        outputs=facts["outputs"],
        micro_batches=facts["micro batches"],
        gathered=1.0 if facts["precision"] == "fp32" else 0.5,
    )
    refused = {n: one["refused"] for n, one in sums.items() if "refused" in one}
    found = [
        _forecast(rank, sums[rank.strategy], sent(work, rank), rate, memory)
        for rank in ranks
        if rank.strategy not in refused
    ]
    if not found:
        raise DevrunError(refused[ranks[0].strategy])
    timed = notes.facts.get(TIMED)
    if device is not None and not isinstance(timed, float):
        refused["computing"] = str(timed or "the process took too long, or was lost")
        timed = None
    return Scaling(
        config=grants.file,
        devices=devices,
        samples=facts["samples"],
        micro_batches=work.micro_batches,
        precision=facts["precision"],
        flops=facts["flops"] * work.micro_batches,
        computing=timed,
        strategies=found,
        advice=_advice(found, memory),
        left_out=refused,
    )


@dataclass(frozen=True)
class _Asked:
    """What the process is asked for."""

    cfg: Any
    grants: Grants
    ranks: tuple[Rank, ...]
    device: str | None


def in_child(asked: _Asked, note: Notebook, seconds: float) -> None:
    """The work of the process."""
    grants = asked.grants
    with as_asked(grants):
        try:
            import_named(grants.imports, grants.file)
            folders = search_folders(grants.file) if grants.everything else ()
            import_custom(asked.cfg.copy(), folders)
            parallel = asked.cfg.get("parallel")
            if isinstance(parallel, Mapping) and "mesh" in parallel:
                # for as many processes as the user has: here each rank has its own
                asked.cfg.merge_from_dict({"parallel.mesh": None})
            cfg = deepcopy(asked.cfg)
            request = Request(cfg, grants, "cpu", "cpu", seen_from_cpu=True)
            rehearse_ranks(request, asked.ranks, note, seconds)
            if asked.device is not None:  # after all that forks
                note.fact(TIMED, _timed(asked.cfg, asked.device))
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
    ends = clock.ends
    spans = [after - before for before, after in pairwise(ends)]
    return statistics.median(spans) if spans else "it has a single update"


class _Clock(Hook):
    """When each update was over, on the device too."""

    priority = "LOWEST"

    def __init__(self) -> None:
        self.ends: list[float] = []

    def after_train_iter(self, runner: Run) -> None:
        outputs: Any = runner.outputs or {}
        loss = outputs.get("loss")
        if loss is not None:
            torch.as_tensor(loss).sum().item()  # waits for it
        self.ends.append(time.perf_counter())


def _ranks(devices: int) -> tuple[Rank, ...]:
    """Those that the number admits, the simplest first."""
    found = [Rank("ddp", devices, 1)]
    if devices == 1:
        return tuple(found)
    inside = min(MACHINE, devices)
    machines, left = divmod(devices, inside)
    if machines > 1 and not left:
        found.append(Rank("hybrid", machines, inside))
    found.append(Rank("fsdp", 1, devices))
    if not left:
        found.append(Rank("tensor", 1, machines, inside))
    return tuple(found)


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


def _rate(device: str) -> float | None:
    """Bytes a second that a rank was measured to send, in the worst all-reduce."""
    adapter = resolve_device(device)
    with ExitStack() as undo:
        undo.callback(adapter.teardown)
        adapter.setup(None)
        peaks = load(adapter)
    rows = [] if peaks is None else peaks.measured
    # what is kept counts 2 (n - 1)/n for each byte, which is what a ring sends
    return min((r.median * 1e9 for r in rows if r.kind == "all_reduce"), default=None)


def _forecast(
    rank: Rank, sums: Any, sent: float, rate: float | None, memory: int | None
) -> Forecast:
    return Forecast(
        **asdict(rank),
        sent=sent,
        sending=sent / rate if rate else None,
        weights=sums["weights"],
        gradients=sums["gradients"],
        optimizer_state=sums["optimizer state"],
        activations=sums["activations"],
        gathered=sums.get("gathered", 0),
        buckets=sums.get("buckets", 0),
        peak=sums["peak"],
        fits=None if memory is None else needed(sums["peak"]) <= memory,
    )


def _advice(found: Sequence[Forecast], memory: int | None) -> str:
    """The simplest strategy of those that fit, or what to do where none does."""
    fitting = [one for one in found if one.fits is not False]
    if not fitting:
        least = min(found, key=lambda one: one.peak)
        return (
            f"none fits: {least.strategy} comes nearest; gradient_checkpointing: true, "
            "fewer data.samples_per_gpu with optimizer_config.cumulative_iters, or "
            "more devices"
        )
    best = fitting[0]
    sizes = {n: getattr(best, n) for n in ("replicate", "shard", "tensor")}
    mesh = ", ".join(f"{n}: {size}" for n, size in sizes.items() if size > 1)
    which = f"parallel: {{type: fsdp, mesh: {{{mesh}}}}}"
    if best.strategy == "ddp":
        which = "parallel: {type: ddp}"
    if memory is None:
        return f"{which}: the simplest; --memory SIZE says which fit"
    return f"{which}: the simplest that fits"
