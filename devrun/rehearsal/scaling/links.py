"""What joins devices: links, in one level or two, given, published or measured.

Published rates are peaks of the wire, one way, of one device. What collectives reach
is less: measure it where the devices are.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from devrun.errors import ConfigError, UnknownNameError, nearest
from devrun.text import PREFIXES, SECONDS, quantity

STRATEGIES = ("ddp", "fsdp", "hybrid", "tensor")
_RATES = {
    f"{prefix}{unit}{each}": power / bits
    for prefix, power in PREFIXES.items()
    for unit, bits in (("b", 1), ("bit", 8))
    for each in ("", "/s")
}


@dataclass(frozen=True)
class Link:
    """`latency` of a hop in seconds; `bandwidth` in bytes a second, one way."""

    latency: float
    bandwidth: float

    def exchange(self, size: float, among: float) -> float:
        """Seconds of a ring's all-gather, or reduce-scatter, of `size` bytes in all.

        (n - 1) a + (n - 1)/n S/B: each of n - 1 steps passes a share of S/n on.
        Thakur, Rabenseifner, Gropp 2005, "Optimization of Collective Communication
        Operations in MPICH", sections 4.1 and 4.3. A ring all-reduce is both, one
        after the other: Patarasuk and Yuan 2009, "Bandwidth optimal all-reduce
        algorithms for clusters of workstations".
        """
        if among <= 1:
            return 0.0
        return (among - 1) * (self.latency + size / among / self.bandwidth)

    def by_trees(self, size: float, among: float) -> float:
        """Seconds of an all-reduce on two binary trees, each of half of the bytes.

        2 log2(n) a + 2 S/B: Sanders, Speck, Traeff 2009, "Two-tree algorithms for full
        bandwidth broadcast, reduction and scan".
        """
        if among <= 1:
            return 0.0
        return 2 * (math.ceil(math.log2(among)) * self.latency + size / self.bandwidth)


@dataclass(frozen=True)
class Fabric:
    """How devices are joined: `inside` a box of `box`, and `across` boxes.

    Attributes:
        name: by which `--link` finds it.
        across: of one device, to those outside its box; None where there are none.
        most: devices that it can join; None for any number.
        overlaps: strategies whose exchanges go on beside the computation.
        scatters: exchanges that a reduce-scatter takes: 2 where it is an all-reduce of
            which a share is kept, as gloo does it.
        trees: whether its library takes trees for an all-reduce where a ring's many
            hops take longer, as NCCL does.
        strategies: those that its devices can run.
        source: of the rates.
    """

    name: str
    inside: Link
    box: int | None = None
    across: Link | None = None
    most: int | None = None
    overlaps: tuple[str, ...] = STRATEGIES
    scatters: int = 1
    trees: bool = False
    strategies: tuple[str, ...] = STRATEGIES
    source: str = ""

    def exchange(self, size: float, within: float, between: float = 1) -> float:
        """Seconds of an all-gather or reduce-scatter over `within` x `between`.

        In two levels: a ring inside the box on all bytes, and rings across the boxes,
        one for each place in a box, on what that place has of them, S / within.
        """
        inside = self.inside.exchange(size, within)
        outer = self.across or self.inside
        return inside + outer.exchange(size / max(within, 1), between)

    def reduce(self, size: float, within: float, between: float = 1) -> float:
        """Seconds of an all-reduce: both exchanges; across boxes maybe on trees."""
        inside = 2 * self.inside.exchange(size, within)
        outer, share = self.across or self.inside, size / max(within, 1)
        ring = 2 * outer.exchange(share, between)
        if self.trees:
            ring = min(ring, outer.by_trees(share, between))
        if not self.across and self.trees:
            inside = min(inside, self.inside.by_trees(size, within))
        return inside + ring

    def split(self, devices: int) -> tuple[float, float]:
        """(devices of a box, boxes) of so many devices, spread evenly."""
        boxes = math.ceil(devices / (self.box or devices))
        return devices / boxes, boxes


def fabric_of(text: str, known: Mapping[str, Fabric]) -> Fabric:
    """That of `--link`: a name of `known`, or a latency and a bandwidth, `5us,50GB/s`.

    Raises:
        UnknownNameError: no such name.
        ConfigError: not a latency above or at 0 and a bandwidth above 0.
    """
    if text in known:
        return known[text]
    latency, comma, bandwidth = text.partition(",")
    if not comma:
        raise UnknownNameError(
            f"--link: no link {text!r}; {nearest(text, known)}; or latency,bandwidth "
            "such as 5us,50GB/s"
        )
    seconds, rate = quantity(latency, SECONDS), quantity(bandwidth, _RATES)
    if seconds is None or not (seconds < math.inf and 0 < (rate or 0) < math.inf):
        raise ConfigError(
            f"--link: {text!r} is not a latency of 0 or more and a bandwidth above 0, "
            "such as 5us,50GB/s or 1ms,1Gbit/s"
        )
    return Fabric("given", Link(seconds, rate or 0))


def fitted(times: Sequence[tuple[float, float]], among: int) -> Link:
    """The link on which `among` ranks took those times to reduce a sum to all.

    The line of least squares, relative to each time, through (bytes, seconds).

    Raises:
        ValueError: fewer than two sizes, or no time.
    """
    if among < 2 or len({size for size, _ in times}) < 2:
        raise ValueError("a link is fitted to two sizes over two ranks, or more")
    sizes, took = np.array(times).T
    slope, latency = map(float, np.polyfit(sizes, took, 1, w=1 / took))
    if slope < 1e-15:  # noise: the larger took no longer
        slope, latency = 1e-15, float(np.average(took, weights=took**-2.0))
    hops = 2 * (among - 1)
    return Link(max(latency / hops, 0.0), hops / among / slope)
