"""`AdapterTests`: which adapter is tested, and how near its numbers must come."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn

from devrun.devices.base import DeviceAdapter
from devrun.devices.resolve import resolve_device


class AdapterTests:
    """Common part of the conformance tests; a subclass names its device."""

    device: ClassVar[Any] = None
    """What a user writes for the device: a name, or a mapping with `type`."""
    rtol: ClassVar[float] = 1e-4
    atol: ClassVar[float] = 1e-5
    """How far losses and weights may be from those of a plain loop on the CPU."""

    @pytest.fixture
    def adapter(self) -> Iterator[DeviceAdapter]:
        """The device's adapter, set up and, in the end, torn down."""
        made = resolve_device(self.device)
        made.setup(0)
        yield made
        made.teardown()

    def assert_close(self, mine: Tensor, theirs: Tensor) -> None:
        """Equal on the host, within the tolerances of this class."""
        torch.testing.assert_close(mine.cpu(), theirs, rtol=self.rtol, atol=self.atol)

    def assert_same_weights(self, mine: Mapping[str, Tensor], other: nn.Module) -> None:
        """`mine` are the weights of `other`, which was trained on the host."""
        theirs = other.state_dict()
        assert mine.keys() == theirs.keys()
        for name, value in mine.items():
            self.assert_close(value, theirs[name])
