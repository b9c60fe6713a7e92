"""`Snapshot`: what an attempt changes, to go back to where it fails."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from devrun.data import streams


class Snapshot:
    """Copies of `tensors`, and the states of all random streams.

    Args:
        adapter: gives and takes back the random state of the device; None leaves that
            to what makes the attempt.
    """

    def __init__(self, tensors: Iterable[Tensor], adapter: Any = None) -> None:
        self._tensors = list(tensors)
        self.values = [tensor.detach().clone() for tensor in self._tensors]
        self._adapter = adapter
        self._host = streams.capture()
        self._device = None if adapter is None else adapter.rng_state()

    def put_back(self) -> None:
        """Make everything as it was."""
        with torch.no_grad():
            for tensor, value in zip(self._tensors, self.values, strict=True):
                tensor.copy_(value)
        streams.restore(self._host)
        if self._device is not None:
            self._adapter.set_rng_state(self._device)
