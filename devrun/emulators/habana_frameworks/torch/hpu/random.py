"""The device's random stream; torch.manual_seed seeds it with the host's."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from habana_frameworks._emulation.streams import GENERATOR
from habana_frameworks.torch.hpu._utils import _get_device_index


def _check(device: Any) -> None:
    if _get_device_index(device) != 0:
        raise RuntimeError(f"hpu has one device, index 0; {device} was given")


def get_rng_state(device: Any = "hpu") -> Tensor:
    """The state, a byte tensor on the host."""
    _check(device)
    return GENERATOR.get_state()


def set_rng_state(new_state: Tensor, device: Any = "hpu") -> None:
    """Put a state back."""
    _check(device)
    GENERATOR.set_state(new_state)


def get_rng_state_all() -> list[Tensor]:
    """The states of all devices: one."""
    return [get_rng_state()]


def set_rng_state_all(new_states: list[Tensor]) -> None:
    """Put the states back; a list of another length than one raises RuntimeError."""
    if len(new_states) != 1:
        raise RuntimeError(f"one state is needed, {len(new_states)} were given")
    set_rng_state(new_states[0])


def manual_seed(seed: int) -> None:
    """Seed the device's stream; the host's stays as it is."""
    GENERATOR.manual_seed(int(seed))


def manual_seed_all(seed: int) -> None:
    """As `manual_seed`."""
    manual_seed(seed)


def seed() -> int:
    """Seed from the system; returns the seed."""
    return int(GENERATOR.seed())


def seed_all() -> int:
    """As `seed`."""
    return seed()


def initial_seed() -> int:
    """The seed in force."""
    return int(GENERATOR.initial_seed())


def default_generators() -> tuple[torch.Generator, ...]:
    """The generators by device."""
    return (GENERATOR,)
