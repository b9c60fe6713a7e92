"""The time of an update on many devices, by formulas, from what one takes.

Every device has the samples of one (weak scaling), so that the efficiency of N is the
time of one over the time of N. The exchanges of a device follow each other on its
link; they go on beside the computation where the fabric lets them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from devrun.rehearsal.scaling.links import Fabric

FIRST_BUCKET, BUCKET = 1 << 20, 25 << 20
"""Bytes of DistributedDataParallel's buckets."""


@dataclass(frozen=True)
class Weight:
    """A parameter: `rows` of its first dimension, `size` in bytes, if it learns."""

    rows: int
    size: int
    trained: bool = True

    def padded(self, shards: float) -> float:
        """Bytes when each of so many shards has as many rows as the largest."""
        rows = max(self.rows, 1)
        return self.size * math.ceil(rows / shards) * shards / rows


@dataclass(frozen=True)
class Part:
    """What FSDP gathers at once: a block, or all that is in none of them.

    Attributes:
        weights: as they are registered.
        share: of the computation.
        output: bytes that it hands on, which tensor parallelism sums; 0 for no block.
    """

    weights: tuple[Weight, ...]
    share: float = 0.0
    output: int = 0

    @property
    def trained(self) -> tuple[Weight, ...]:
        return tuple(weight for weight in self.weights if weight.trained)


@dataclass(frozen=True)
class Work:
    """One update of one device.

    Attributes:
        forward, backward: seconds of one micro-batch.
        optimizer: seconds of the update, with whole weights.
        blocks: in the order of the forward pass.
        rest: what is in no block. It is taken to be computed after them, where nothing
            is left to hide its gradients behind; some of it, such as an embedding,
            comes first.
        micro_batches: of an update; only the last exchanges gradients.
        gathered: bytes that FSDP gathers for each of a weight: a half where those of
            fp32 travel as bf16.
    """

    forward: float
    backward: float
    optimizer: float
    blocks: tuple[Part, ...]
    rest: Part
    micro_batches: int = 1
    gathered: float = 1.0

    @property
    def compute(self) -> float:
        """Seconds of an update on one device."""
        return self.micro_batches * (self.forward + self.backward) + self.optimizer

    @property
    def gradients(self) -> int:
        """Bytes."""
        parts = (*self.blocks, self.rest)
        return sum(weight.size for part in parts for weight in part.trained)


@dataclass(frozen=True)
class Prediction:
    """One strategy on `devices` = replicate x shard x tensor.

    Attributes:
        seconds: of an update.
        exposed: seconds of it that nothing is computed in.
        efficiency: of the device, 1.0 without exchanges.
        sent: bytes that each device sends.
    """

    strategy: str
    devices: int
    replicate: int
    shard: int
    tensor: int
    seconds: float
    exposed: float
    efficiency: float
    sent: float


class _Line:
    """The exchanges of a device, one after the other."""

    def __init__(self, overlaps: bool) -> None:
        self.free, self.sent, self.overlaps = 0.0, 0.0, overlaps

    def send(self, issued: float, seconds: float, sent: float) -> float:
        """When an exchange ends that was asked for at `issued`."""
        self.free = max(self.free, issued) + seconds
        self.sent += sent
        return self.free

    def after(self, now: float, end: float) -> float:
        """When the computation goes on after it asked for what is done at `end`."""
        return now if self.overlaps else max(now, end)


def predict(work: Work, fabric: Fabric, strategy: str, devices: int) -> Prediction:
    """The time of an update of `work` on so many devices.

    `ddp`: a bucket's all-reduce begins when its gradients are there; the update waits
    for the last. `fsdp`: weights are gathered for the forward and again for the
    backward pass, one block ahead, and gradients are scattered, 1.5 times the bytes of
    `ddp` (Rajbhandari et al. 2020, "ZeRO", section 7.2.2). `hybrid`: the same inside a
    box, then the shards' sum across boxes. `tensor`: matrices are divided inside a
    box, which takes the samples of all its devices; four all-reduces of activations a
    block, with nothing to hide them (Shoeybi et al. 2019, "Megatron-LM", section 3),
    and `fsdp` of what each has across boxes.
    """
    within, between = fabric.split(devices)
    line = _Line(strategy in fabric.overlaps)
    sizes = {"replicate": devices, "shard": 1, "tensor": 1}
    if strategy == "ddp":
        end = _ddp(work, fabric, line, within, between)
    elif strategy == "tensor":
        sizes = {"replicate": 1, "shard": int(between), "tensor": int(within)}
        end = _fsdp(work, fabric, line, (1, between), tensor=within)
    elif strategy == "hybrid":
        sizes |= {"replicate": int(between), "shard": int(within)}
        end = _fsdp(work, fabric, line, (within, 1), copies=between)
    else:
        sizes |= {"replicate": 1, "shard": devices}
        end = _fsdp(work, fabric, line, (within, between))
    spread = sizes["shard"] * sizes["tensor"]
    compute = work.compute - work.optimizer * (1 - 1 / spread)
    return Prediction(
        strategy,
        devices,
        **sizes,
        seconds=end,
        exposed=max(end - compute, 0.0),
        efficiency=work.compute / end if end else 1.0,
        sent=line.sent,
    )


def buckets(work: Work) -> Iterator[tuple[int, float]]:
    """(bytes, share of the backward pass by then) of DDP's buckets, the first first.

    Parameters in the reverse of their registration fill 1 MiB, then 25 MiB each, as
    DistributedDataParallel does: Li et al. 2020, "PyTorch Distributed", section 3.2.
    """
    size, done, limit = 0, 0.0, FIRST_BUCKET
    for part in (work.rest, *reversed(work.blocks)):
        whole = sum(weight.size for weight in part.trained)
        for weight in reversed(part.trained):
            size += weight.size
            done += part.share * weight.size / whole
            if size >= limit:
                yield size, min(done, 1.0)
                size, limit = 0, BUCKET
        if not whole:
            done += part.share
    if size:
        yield size, 1.0


def _ddp(
    work: Work, fabric: Fabric, line: _Line, within: float, between: float
) -> float:
    start = (work.micro_batches - 1) * (work.forward + work.backward) + work.forward
    now, before = start, 0.0
    for size, done in buckets(work):
        now += (done - before) * work.backward
        before = done
        seconds = fabric.reduce(size, within, between)
        now = line.after(now, line.send(now, seconds, 2 * _sent(size, within, between)))
    return max(now + (1 - before) * work.backward, line.free) + work.optimizer


def _fsdp(
    work: Work,
    fabric: Fabric,
    line: _Line,
    group: tuple[float, float],
    *,
    copies: float = 1,
    tensor: float = 1,
) -> float:
    """Seconds, with shards over `group`, each of which has so many `copies`.

    `tensor`: devices over which matrices are divided; each has a share of every block,
    and the samples of all.
    """
    shards = group[0] * group[1]

    def exchange(
        now: float, weights: tuple[Weight, ...], times: int = 1, bytes_: float = 1.0
    ) -> tuple[float, float]:
        size = bytes_ * sum(weight.padded(shards) for weight in weights) / tensor
        seconds, sent = fabric.exchange(size, *group), _sent(size, *group)
        return line.send(now, times * seconds, times * sent), size

    def gather(now: float, part: Part) -> float:
        return exchange(now, part.weights, bytes_=work.gathered)[0]

    def scatter(now: float, part: Part) -> float:
        end, size = exchange(now, part.trained, fabric.scatters)
        if copies > 1:
            seconds = fabric.reduce(size / shards, 1, copies)
            end = line.send(now, seconds, 2 * _sent(size / shards, copies))
        return end

    def summed(part: Part) -> float:
        """Twice in each pass: of attention and of the MLP."""
        size = part.output * tensor
        line.sent += 4 * _sent(size, tensor)
        return 2 * fabric.reduce(size, tensor)

    def through(
        now: float, order: tuple[Part, ...], seconds: float, *, scatters: bool
    ) -> float:
        """A pass over the blocks, the next of which is gathered meanwhile."""
        ready = [gather(now, part) for part in order[:1]]
        for index, part in enumerate(order):
            now = max(now, ready[index])
            if index + 1 < len(order):
                ready.append(gather(now, order[index + 1]))
                now = line.after(now, ready[-1])
            now += part.share * seconds + summed(part)
            if scatters:
                now = line.after(now, scatter(now, part))
        return now

    now = 0.0
    for number in range(work.micro_batches):
        last = number == work.micro_batches - 1
        now = max(now, gather(now, work.rest))
        now = through(now, work.blocks, work.forward, scatters=False)
        now += work.rest.share * (work.forward + work.backward)
        now = through(now, work.blocks[::-1], work.backward, scatters=last)
    now = max(now, scatter(now, work.rest))
    return now + work.optimizer / shards / tensor


def _sent(size: float, within: float, between: float = 1.0) -> float:
    """Bytes that one rank sends in an exchange of `size` in all."""
    inside = size * (within - 1) / within
    return inside + size / within * (between - 1) / between
