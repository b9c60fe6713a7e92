"""Random state of the host: Python, NumPy and torch's CPU generator."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import numpy
import torch

from devrun.errors import CheckpointError


def host_rng_state() -> dict[str, Any]:
    """The state of the three global streams; `set_host_rng_state` takes it back."""
    return {
        "python": random.getstate(),
        "numpy": numpy.random.get_state(),
        "torch": torch.get_rng_state().numpy().tobytes(),
    }


def set_host_rng_state(state: Mapping[str, Any]) -> None:
    """Put the streams back; all of them, or none when one is not as it was given.

    Raises:
        CheckpointError: a stream is missing or its state malformed.
    """
    before = host_rng_state()
    try:
        _set(state)
    except (LookupError, TypeError, ValueError, OverflowError, RuntimeError) as error:
        _set(before)
        raise CheckpointError(f"random state cannot be restored: {error!r}") from error


def _set(state: Mapping[str, Any]) -> None:
    _, _, place, *_ = state["numpy"]
    if not 0 <= place <= 624:  # NumPy would read on behind its words
        raise ValueError(f"NumPy's stream stands at {place}")
    random.setstate(state["python"])
    numpy.random.set_state(state["numpy"])
    words = torch.frombuffer(bytearray(state["torch"]), dtype=torch.uint8)
    torch.set_rng_state(words)
