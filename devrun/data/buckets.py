"""The sizes that variable-length batches are padded to, and what that costs."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from devrun.errors import DataError

POLICIES = ("error", "truncate", "grow")
WAYS = ("optimal", "quantiles", "powers", "longest")
_CANDIDATES = 512


@dataclass(frozen=True)
class Buckets:
    """The sizes that batches are padded to, ascending; without any, the longest
    sample of each batch decides."""

    sizes: tuple[int, ...]
    multiple_of: int = 1
    max_length: int | None = None
    too_long: str = "error"

    @property
    def largest(self) -> int | None:
        return self.sizes[-1] if self.sizes else self.max_length

    def fit(self, length: int) -> int:
        """The size for a batch whose longest sample has `length`.

        Raises:
            DataError: it is too long, and `too_long` is "error".
        """
        largest = self.largest
        if largest is None:
            return _rounded(length, self.multiple_of)
        if length <= largest:
            if self.sizes:
                return self.sizes[bisect_left(self.sizes, length)]
            return min(_rounded(length, self.multiple_of), largest)
        if self.too_long == "truncate":
            return largest
        if self.too_long == "grow":  # no state: workers and restarts agree
            while largest < length:
                largest *= 2
            return largest
        raise DataError(
            f"a sample of length {length} is above the largest bucket, {largest}; "
            "too_long: truncate cuts it, grow doubles the size, or give larger sizes"
        )

    def __str__(self) -> str:
        if not self.sizes:
            return "the longest sample of each batch"
        sizes = ", ".join(map(str, self.sizes))
        return f"{len(self.sizes)} size{'s' * (len(self.sizes) > 1)} ({sizes})"


def choose_sizes(
    way: str, longest: Tensor, most: int, *, num: int, multiple_of: int
) -> list[int]:
    """At most `num` sizes for batches whose longest samples are `longest`; the last
    one holds `most`.

    `optimal`: the least padding; `quantiles`: as many batches in each; `powers` of two,
    all that are needed.
    """
    if way == "optimal":
        return _least_padding(longest, most, num, multiple_of)
    if way == "powers":
        first, last = (
            max(length - 1, 0).bit_length() for length in (int(longest.min()), most)
        )
        found = [2**power for power in range(first, last + 1)]
    else:
        ends = -(-torch.arange(1, num) * len(longest) // num) - 1  # rounded up
        found = [*longest.sort().values[ends].tolist(), most]
    return sorted({_rounded(size, multiple_of) for size in found})


def _least_padding(longest: Tensor, most: int, num: int, multiple: int) -> list[int]:
    """Dynamic programming over the distinct lengths, at most 512 of them.

    `cost[i, j]` is what batches of lengths i to j take at size j, `best[j]` the least
    for those up to j with the sizes so far.
    """
    while most / multiple > _CANDIDATES:
        multiple *= 2
    rounded = [_rounded(length, multiple) for length in [*longest.tolist(), most]]
    sizes, counts = torch.tensor(rounded).unique(return_counts=True)
    until = counts.cumsum(0)
    cost = sizes * (until - (until - counts)[:, None]).double()
    cost[torch.ones_like(cost).tril(-1).bool()] = torch.inf
    best, cuts = cost[0], []
    for _ in range(min(num, len(sizes)) - 1):
        before = torch.cat([torch.zeros(1, dtype=torch.float64), best[:-1]])
        best, cut = (before[:, None] + cost).min(0)
        cuts.append(cut)
    at, chosen = len(sizes) - 1, [int(sizes[-1])]
    for cut in reversed(cuts):
        at = int(cut[at]) - 1
        if at < 0:
            break
        chosen.append(int(sizes[at]))
    return sorted(chosen)


def forecast(batches: Sequence[Tensor], buckets: Buckets) -> str:
    """Share of padding and number of shapes in `batches`, the lengths of their samples.

    A shape is the number of samples and the size they are padded to.
    """
    shapes: set[tuple[int, int]] = set()
    real = total = 0
    for batch in batches:
        size = buckets.fit(int(batch.max()))
        shapes.add((len(batch), size))
        real += int(batch.clamp(max=size).sum())
        total += len(batch) * size
    share = 100 * (1 - real / max(total, 1))
    return f"{share:.1f} % padding, {len(shapes)} shape{'s' * (len(shapes) > 1)}"


def _rounded(length: int, multiple: int) -> int:
    return -(-max(length, 1) // multiple) * multiple
