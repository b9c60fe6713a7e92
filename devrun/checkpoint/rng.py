"""Random state of the host: Python, NumPy and torch's CPU generator, as plain JSON."""

from __future__ import annotations

import base64
import binascii
import random
from collections.abc import Mapping
from typing import Any

import numpy
import torch

from devrun.errors import CheckpointError


def host_rng_state() -> dict[str, Any]:
    """The state of the three global streams; `set_host_rng_state` takes it back."""
    version, words, gauss = random.getstate()
    return {
        "python": {"version": version, "words": list(words), "gauss": gauss},
        "numpy": _listed(numpy.random.get_state(legacy=False)),
        "torch": base64.b64encode(torch.get_rng_state().numpy().tobytes()).decode(),
    }


def set_host_rng_state(state: Mapping[str, Any]) -> None:
    """Put the streams back; all of them, or none when one is not as it was given.

    Raises:
        CheckpointError: a stream is missing or its state malformed.
    """
    before = (random.getstate(), numpy.random.get_state(), torch.get_rng_state())
    try:
        python = state["python"]
        raw = bytearray(base64.b64decode(state["torch"], validate=True))
        random.setstate((python["version"], tuple(python["words"]), python["gauss"]))
        numpy.random.set_state(_arrays(state["numpy"]))
        torch.set_rng_state(torch.frombuffer(raw, dtype=torch.uint8))
    except (
        KeyError,
        TypeError,
        ValueError,
        OverflowError,
        RuntimeError,
        binascii.Error,
    ) as error:
        random.setstate(before[0])
        numpy.random.set_state(before[1])
        torch.set_rng_state(before[2])
        raise CheckpointError(f"random state cannot be restored: {error!r}") from error


def _listed(value: Any) -> Any:
    """Arrays as lists with their type, the rest as it is."""
    if isinstance(value, dict):
        return {key: _listed(item) for key, item in value.items()}
    if isinstance(value, numpy.ndarray):
        return {"dtype": value.dtype.str, "values": value.tolist()}
    return value.item() if isinstance(value, numpy.generic) else value


def _arrays(value: Any) -> Any:
    if not isinstance(value, Mapping):
        return value
    if value.keys() == {"dtype", "values"}:
        if value["dtype"] not in ("<u4", "<u8"):
            raise ValueError(f"words of type {value['dtype']!r}")
        return numpy.array(value["values"], dtype=value["dtype"])
    return {key: _arrays(item) for key, item in value.items()}
