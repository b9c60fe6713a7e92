"""The device's random stream: separate from the host's, seeded together with it."""

from __future__ import annotations

import torch

GENERATOR = torch.Generator()
"""Holds the state of hpu:0; torch.manual_seed sets it as well as the host's."""


class DeviceStream:
    """Inside, the host's default generator is in the state of the device's.

    For operators that draw numbers but take no generator.
    """

    def __enter__(self) -> None:
        self._host = torch.default_generator.get_state()
        torch.default_generator.set_state(GENERATOR.get_state())

    def __exit__(self, *exc: object) -> None:
        GENERATOR.set_state(torch.default_generator.get_state())
        torch.default_generator.set_state(self._host)
