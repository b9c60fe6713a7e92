"""What the first updates of a training did: records, their noise, and their file."""

from __future__ import annotations

import io
import math
import os
from dataclasses import astuple, dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from devrun.errors import ConfigError
from devrun.files import disk_errors, open_regular, replace_file
from devrun.text import one_line

SCHEMA = "devrun.recording/5"
KINDS = ("dropout", "batch", "hyperparameter", "input", "activation", "loss",
         "gradient", "update", "buffer")  # fmt: skip
KEPT, OF_INPUTS = 1 << 18, 1 << 14
"""Values of a tensor that are compared at most, spread over it evenly; the same of what
a module is given, which is mostly what another one put out."""
MOVES = 3
"""Measurements of what one rounding does; the largest effect counts."""
SLACK = 8.0
"""Times the measured effect of one rounding that is still rounding: a step rounds once
an operation, the measurement once a weight. An H200 used 4.2 of them for a GPT."""
FEWEST, FEWEST_OF_HALF = 16, 4
"""Roundings that are always allowed, for records which that one did not reach. Fewer in
half precision, whose sums are formed in fp32 and rounded once."""


@dataclass(frozen=True)
class Key:
    """What a record is of.

    Attributes:
        step: of the update, from 1.
        kind: one of `KINDS`.
        name: of the module, the parameter or buffer, or the value.
        call: counts a module's tensors, and an optimizer's steps, within the update.
        caller: of an `input`: the module that calls; "" for the model's own step.
    """

    step: int
    kind: str
    name: str
    call: int = 0
    caller: str = ""


@dataclass
class Recording:
    """A training's records, in the order in which they were computed.

    Attributes:
        epsilon: the relative distance of two neighbouring numbers of its precision.
        steps: updates.
        whole: updates of the training that these begin.
        noise: how far one rounding of the first weights carries a record, relative to
            its norm; empty until it is measured.
        places: module -> `file:line` of its code, where that is not torch's.
        astray: the first record that comes out otherwise when the training is
            repeated, and by how much; None where it repeats itself.
    """

    label: str
    epsilon: float = 0.0
    steps: int = 0
    whole: int = 0
    records: dict[Key, Tensor] = field(default_factory=dict)
    noise: dict[Key, float] = field(default_factory=dict)
    places: dict[str, str] = field(default_factory=dict)
    astray: tuple[Key, float] | None = None

    @property
    def kinds(self) -> set[str]:
        """Kinds of records that the device could give."""
        return {key.kind for key in self.records}

    def least(self, kind: str) -> float:
        """The smallest relative difference that counts in such a record."""
        whole = torch.finfo(torch.float32).eps
        epsilon = whole if kind == "hyperparameter" else self.epsilon
        return (FEWEST if epsilon <= whole else FEWEST_OF_HALF) * epsilon

    def measure(self, moved: Recording, *, jumps: bool = False) -> None:
        """Take what `moved`, the same from moved weights, says of the noise.

        What it was in one update, it may be in the next.

        Args:
            jumps: they were moved by `SLACK` roundings, and what changed no more than
                twice in proportion does not count.
        """
        largest: dict[Key, float] = {}
        for key, record in self.records.items():
            if key in moved.records:
                carried = distance(record, moved.records[key])
                if jumps and carried <= 2 * SLACK * self.noise.get(key, 0.0):
                    continue
                always = replace(key, step=0)
                largest[always] = max(largest.get(always, 0.0), carried)
                self.noise[key] = max(self.noise.get(key, 0.0), largest[always])

    def check_repeated(self, again: Recording) -> None:
        """Find what `again`, the same once more, has otherwise than by rounding.

        Once a device has rounded otherwise, weights and buffers do not count: of a
        gradient that is zero but for rounding, an optimizer may make a whole update.
        """
        allowed, exact = self.epsilon**0.5, True
        for key, record in self.records.items():
            counts = exact or key.kind not in ("update", "buffer")
            if key not in again.records or not counts:
                continue
            other = again.records[key]
            apart = distance(record, other)
            if not apart <= allowed and not self.is_nothing(key, record, other):
                self.astray = key, apart
                return
            exact = exact and apart == 0

    def is_nothing(self, key: Key, a: Tensor, b: Tensor) -> bool:
        """Whether a gradient is zero in exact arithmetic: in both, all rounding.

        Such as that of a bias before a normalisation. It is nothing beside the largest
        gradient of its update, and either exactly zero or nowhere the same twice.
        """
        if key.kind != "gradient" or a.shape != b.shape:
            return False
        least = SLACK * self.least(key.kind) * self._largest_gradient(key.step)
        zero = not (a.any() and b.any())
        small = max(_rms(a), _rms(b)) <= least
        return small and (zero or self.noise.get(key, 1.0) > 0.1)

    def _largest_gradient(self, step: int) -> float:
        gradients = (
            _rms(record)
            for key, record in self.records.items()
            if (key.step, key.kind) == (step, "gradient")
        )
        return max(gradients, default=0.0)


def kept(tensor: Tensor, most: int = KEPT) -> Tensor:
    """At most `most` values of `tensor`, copied to the host in float32 or float64."""
    values = tensor.detach()
    values = torch.view_as_real(values) if values.is_complex() else values
    values = values.reshape(-1)
    stride = max(-(-values.numel() // most), 1)
    small = values.is_floating_point() and values.element_size() <= 4
    dtype = torch.float32 if small else torch.float64
    return values[::stride].to("cpu", dtype, copy=True)


def distance(a: Tensor, b: Tensor) -> float:
    """Norm of the difference over the larger norm; infinite where shapes, or values
    that are not finite, differ."""
    if a.shape != b.shape:
        return math.inf
    a, b = a.double(), b.double()
    finite = torch.isfinite(a)
    if not torch.equal(a[~finite].nan_to_num(nan=0.5), b[~finite].nan_to_num(nan=0.5)):
        return math.inf
    if not torch.isfinite(b[finite]).all():
        return math.inf
    a, b = a[finite], b[finite]
    scale = max(a.norm(), b.norm())
    return float((a - b).norm() / scale) if scale > 0 else 0.0


def _rms(record: Tensor) -> float:
    return float(record.double().square().mean().sqrt())


def write(recording: Recording, path: str | os.PathLike[str]) -> None:
    """Keep `recording` in a file.

    Raises:
        StorageError: it cannot be written.
    """
    kept: dict[str, Any] = {**vars(recording), "schema": SCHEMA}
    for name in ("records", "noise"):
        kept[name] = [(astuple(key), value) for key, value in kept[name].items()]
    if recording.astray is not None:
        kept["astray"] = astuple(recording.astray[0]), recording.astray[1]
    file = io.BytesIO()
    torch.save(kept, file)
    with disk_errors(f"cannot write {os.fspath(path)!r}", "; choose another place"):
        replace_file(path, file.getvalue())


def read(path: str | os.PathLike[str]) -> Recording:
    """The recording in a file, which may be a stranger's: nothing of it is run.

    Raises:
        ConfigError: it is not there, or no recording.
    """
    try:
        with open_regular(path) as file:
            kept = torch.load(file, map_location="cpu", weights_only=True)
        if kept.pop("schema") != SCHEMA:
            raise ValueError(f"its schema is not {SCHEMA}")
        for name in ("records", "noise"):
            kept[name] = {Key(*key): value for key, value in kept[name]}
        if kept["astray"] is not None:
            kept["astray"] = Key(*kept["astray"][0]), kept["astray"][1]
        return Recording(**kept)
    except OSError as error:
        reason = error.strerror or str(error)
        raise ConfigError(f"{os.fspath(path)!r} cannot be read: {reason}") from error
    except Exception as error:
        raise ConfigError(
            f"{os.fspath(path)!r} is no recording of devrun compare --record "
            f"({type(error).__name__}: {one_line(error)[:100]}); make it anew"
        ) from error
