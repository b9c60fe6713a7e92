"""The memory that tensors take while a training runs, by what they are."""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Iterable
from functools import partial
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from devrun.rehearsal.check.cuda.origins import flat_tensors, storage_of

_BLOCK = 512
"""Bytes that CUDA's caching allocator rounds each tensor up to."""


class Accounts(TorchDispatchMode):
    """Sums the storages that are alive, and keeps the sums of the highest moment.

    What is made while it is entered is booked as `making`; `book` says of a tensor
    that it is something else.
    """

    def __init__(self) -> None:
        super().__init__()
        self.making = "activations"
        self.now: Counter[str] = Counter()
        """Bytes by kind."""
        self.peaks: dict[str, Counter[str]] = {}
        """The same when most was there, since `begin`, by what was being done."""
        self.doing = ""
        self._held: dict[int, tuple[Any, int, str]] = {}

    def begin(self) -> None:
        """Look for the highest moment from here on."""
        self.peaks = {}

    def book(self, tensors: Iterable[Tensor], kind: str) -> None:
        for tensor in tensors:
            self._book(tensor, kind, again=True)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        made = func(*args, **(kwargs or {}))
        for tensor in flat_tensors((made,)):
            self._book(tensor, self.making)
        return made

    def _book(self, tensor: Tensor, kind: str, *, again: bool = False) -> None:
        storage = storage_of(tensor)
        if storage is None or tensor.device.type == "meta":
            return
        key = storage._cdata
        if key in self._held:
            if again:
                reference, size, before = self._held[key]
                self._held[key] = reference, size, kind
                self.now[before] -= size
                self.now[kind] += size
            return
        size = -(-storage.nbytes() // _BLOCK) * _BLOCK
        reference = weakref.ref(storage, partial(self._freed, key))
        self._held[key] = reference, size, kind
        self.now[kind] += size
        if self.now.total() > self.peaks.get(self.doing, Counter()).total():
            self.peaks[self.doing] = self.now.copy()

    def _freed(self, key: int, _: Any) -> None:
        _, size, kind = self._held.pop(key)
        self.now[kind] -= size
