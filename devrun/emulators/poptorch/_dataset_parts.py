"""Which samples of a dataset a process takes, and in which order."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import Sampler

from poptorch._args_parser import rebuilt, tensors_in


class ProcessSampler(Sampler[int]):
    """One process's contiguous share of a map-style dataset; each `iter` is an epoch.

    With a seed, which all processes have, the order of the whole dataset is drawn anew
    each epoch before the share is taken; of each two epochs the second begins with what
    equal shares left over in the first.
    """

    def __init__(
        self,
        total: int,
        processes: int,
        process: int,
        step: int,
        drop_last: bool,
        seed: int | None,
    ) -> None:
        self._total = total
        self._seed = seed
        self._epoch = 0
        if drop_last:
            self._length = total // (step * processes) * step
            self._begin = self._length * process
            self._used = self._length * processes
        else:
            base, rest = divmod(total, processes)
            self._length = base + (1 if process < rest else 0)
            self._begin = base * process + min(process, rest)
            self._used = total

    def _order(self, epoch: int) -> list[int]:
        if self._seed is None:
            return list(range(self._total))
        pair = torch.Generator().manual_seed(self._seed + epoch // 2)
        order: list[int] = torch.randperm(self._total, generator=pair).tolist()
        if epoch % 2 == 0:
            return order
        again = torch.Generator().manual_seed(self._seed + epoch // 2 + 2**31)
        mixed = torch.randperm(self._used, generator=again).tolist()
        return order[self._used :] + [order[i] for i in mixed]

    def __iter__(self) -> Iterator[int]:
        order = self._order(self._epoch)
        self._epoch += 1
        return iter(order[self._begin : self._begin + self._length])

    def __len__(self) -> int:
        return self._length


def joined(batches: Iterator[Any], count: int, drop_last: bool) -> Iterator[Any]:
    """`count` batches after one another as one; the last may be of fewer."""
    parts: list[list[torch.Tensor]] = []
    for batch in batches:
        parts.append(list(tensors_in(batch)))
        if len(parts) == count:
            yield _concatenated(batch, parts)
            parts = []
    if parts and not drop_last:
        yield _concatenated(batch, parts)


def _concatenated(like: Any, parts: list[list[torch.Tensor]]) -> Any:
    if len(lengths := {len(tensors) for tensors in parts}) > 1:
        raise ValueError(f"batches of {sorted(lengths)} tensors cannot be joined")
    return rebuilt(like, (torch.cat(tensors) for tensors in zip(*parts)))
