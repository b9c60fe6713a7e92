"""What the first updates of a training do, recorded: outputs, loss, gradients, weights.

A recording can be written to a file, so that trainings of two machines
can be laid over each other. The file is one of safetensors: reading it runs
nothing.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import astuple, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from devrun.checkpoint import fileops, strict_json, tensorfile
from devrun.errors import ConfigError
from devrun.files import disk_errors, replace_file
from devrun.hooks.base import Hook
from devrun.rehearsal.bench import DTYPES
from devrun.run import Run
from devrun.runners.training import Training
from devrun.runners.trial import trial
from devrun.step import Capability
from devrun.tensors import tensors_in
from devrun.text import one_line

SCHEMA = "devrun.recording/1"
KEPT = 1 << 18
"""Values of a tensor that are compared at most, spread over it evenly."""
MOVES = 3
"""Measurements of what one rounding does; the largest effect counts."""


@dataclass(frozen=True)
class Key:
    """What a record is of: `call` counts a module's runs within the step."""

    step: int
    kind: str
    name: str
    call: int = 0


@dataclass
class Recording:
    """A training's records in the order in which they came.

    Attributes:
        noise: how far one rounding of the first weights carries a record, relative to
            its norm; empty until it is measured.
        blur: the relative error with which a record was written down; 0 where it is
            not here.
    """

    label: str
    precision: str
    records: dict[Key, Tensor] = field(default_factory=dict)
    noise: dict[Key, float] = field(default_factory=dict)
    blur: dict[Key, float] = field(default_factory=dict)

    @property
    def kinds(self) -> set[str]:
        """Kinds of records that the device could give."""
        return {key.kind for key in self.records}

    @property
    def epsilon(self) -> float:
        """The relative distance of two neighbouring numbers of its precision."""
        return torch.finfo(DTYPES.get(self.precision, torch.float32)).eps


class UpdateRecorder(Hook):
    """Notes the loss and the change of the weights by each step, on the host."""

    priority = "LOWEST"

    def __init__(self, recording: Recording) -> None:
        self.recording = recording
        self._step = 0
        self._weights: dict[str, Tensor] = {}

    def before_run(self, runner: Run) -> None:
        self._weights = weights(runner)

    def before_train_iter(self, runner: Run) -> None:
        self._step = runner.iter + 1

    def after_train_iter(self, runner: Run) -> None:
        outputs: Mapping[str, Any] = runner.outputs or {}
        loss = outputs.get("log_vars", {}).get("loss", outputs.get("loss"))
        if loss is not None:
            self._note("loss", "loss", torch.as_tensor(loss))
        before, self._weights = self._weights, weights(runner)
        for name, weight in self._weights.items():
            if name in before:
                self._note("update", name, weight - before[name])

    def _note(self, kind: str, name: str, tensor: Tensor, call: int = 0) -> None:
        if tensor.is_floating_point() and tensor.numel():
            self.recording.records[Key(self._step, kind, name, call)] = kept(tensor)


class Recorder(UpdateRecorder):
    """Notes what modules put out and the gradients too, where a device shows them."""

    def __init__(self, recording: Recording) -> None:
        super().__init__(recording)
        self._calls: dict[str, int] = {}
        self._handles: list[Any] = []

    def before_run(self, runner: Run) -> None:
        super().before_run(runner)
        self._handles = [
            part.register_forward_hook(partial(self._note_output, name))
            for name, part in runner.model.named_modules()
            if name
        ]

    def _note_output(self, name: str, module: nn.Module, given: Any, out: Any) -> None:
        for tensor in tensors_in(out):
            call = self._calls.get(name, 0)
            self._calls[name] = call + 1
            self._note("activation", name, tensor, call)

    def before_train_iter(self, runner: Run) -> None:
        super().before_train_iter(runner)
        self._calls.clear()

    def after_backward(self, runner: Run) -> None:
        for name, parameter in reversed(list(runner.model.named_parameters())):
            if parameter.grad is not None:
                self._note("gradient", name, parameter.grad)

    def after_run(self, runner: Run) -> None:
        for handle in self._handles:
            handle.remove()


def kept(tensor: Tensor, most: int = KEPT) -> Tensor:
    """At most `most` values of `tensor`, copied to the host in float64."""
    values = tensor.detach().reshape(-1)
    stride = max(-(-values.numel() // most), 1)
    return values[::stride].to("cpu", torch.float64, copy=True)


def weights(runner: Run) -> dict[str, Tensor]:
    """The weights that train, on the host."""
    runner.adapter.sync_to_host(runner.model)
    return {
        name: kept(parameter)
        for name, parameter in runner.model.named_parameters()
        if parameter.requires_grad
    }


def short(cfg: Mapping[str, Any], steps: int) -> AbstractContextManager[Training]:
    """The training of `cfg`, which ends after `steps` updates of its own schedule."""
    return trial(cfg, steps, progress=False)


def shows_steps(training: Training) -> bool:
    """Whether the device shows what happens within a step."""
    return Capability.GRAD_ACCESS in training.runner.session.adapter.capabilities


def record(
    cfg: Mapping[str, Any], label: str, steps: int, rounding: float, move: int
) -> Recording:
    """Train `cfg`, which has a seed, and keep what every step did.

    See `compare.Side.record`.

    Raises:
        DevrunError: as the training would.
    """
    recording = Recording(label, "fp32")
    with short(cfg, steps) as training:
        recorder = Recorder if shows_steps(training) else UpdateRecorder
        training.runner.register_hook(recorder(recording))
        move_weights(training.runner.model, rounding, move)
        without_dropout(training.runner.model)
        training.run()
        recording.precision = training.runner.session.policy.precision
    return recording


def move_weights(module: nn.Module, size: float, seed: int) -> None:
    """Change each weight by `size` of itself, up or down by chance; not by 0."""
    if not size:
        return
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in module.parameters():
            sign = torch.randint(0, 2, parameter.shape, generator=generator) * 2 - 1
            parameter.mul_(1 + size * sign.to(parameter.device, parameter.dtype))


def without_dropout(module: nn.Module) -> None:
    """Devices draw from streams of their own, so what is drawn is left out of it."""
    for part in module.modules():
        names = ["p"] if "Drop" in type(part).__name__ else []
        names += [name for name in vars(part) if "drop" in name]
        for name in names:
            if type(getattr(part, name, None)) is float:
                setattr(part, name, 0.0)


def noise(base: Recording, moved: Recording) -> None:
    """Take what `moved`, the same from moved weights, says of the noise of `base`."""
    for key, records in base.records.items():
        if key in moved.records:
            carried = distance(records, moved.records[key])
            base.noise[key] = max(base.noise.get(key, 0.0), carried)


def distance(a: Tensor, b: Tensor) -> float:
    """Norm of the difference over the norm; infinite where shapes, or NaNs, differ."""
    if a.shape != b.shape:
        return math.inf
    finite = torch.isfinite(a)
    if not torch.equal(finite, torch.isfinite(b)):
        return math.inf
    difference = (a - b)[finite].norm()
    scale = a[finite].norm()
    return float(difference / scale) if scale > 0 else float(difference)


def write(recording: Recording, path: str | os.PathLike[str]) -> None:
    """Keep `recording` in a file.

    Raises:
        StorageError: it cannot be written.
    """
    keys = list(recording.records)
    about = {
        "label": recording.label,
        "precision": recording.precision,
        "keys": [astuple(key) for key in keys],
    }
    noises = [recording.noise.get(key, math.nan) for key in keys]
    tensors = {str(i): recording.records[key] for i, key in enumerate(keys)}
    tensors["noise"] = torch.tensor(noises, dtype=torch.float64)
    write_tensors(path, about, tensors)


def read(path: str | os.PathLike[str]) -> Recording:
    """The recording in a file.

    Raises:
        ConfigError: it is not there, or no recording.
    """
    about, tensors = read_tensors(path)
    try:
        found = Recording(str(about["label"]), str(about["precision"]))
        if found.precision not in DTYPES:
            raise ValueError(f"a precision {found.precision!r}")
        carried = tensors["noise"].tolist()
        for index, (step, kind, name, call) in enumerate(about["keys"]):
            key = Key(int(step), str(kind), str(name), int(call))
            found.records[key] = tensors[str(index)].to(torch.float64).reshape(-1)
            if carried[index] == carried[index]:
                found.noise[key] = float(carried[index])
    except (ValueError, TypeError, LookupError, AttributeError) as error:
        raise _no_recording(path, error) from error
    return found


def write_tensors(
    path: str | os.PathLike[str],
    about: Mapping[str, Any],
    tensors: Mapping[str, Tensor],
) -> None:
    """A safetensors file of `tensors`, which has `about` as JSON in one more.

    Raises:
        StorageError: it cannot be written.
    """
    text = bytearray(json.dumps({"schema": SCHEMA, **about}).encode())
    held = {**tensors, "about": torch.frombuffer(text, dtype=torch.uint8)}
    with disk_errors(f"cannot write {os.fspath(path)!r}", "; choose another place"):
        replace_file(path, b"".join(map(bytes, tensorfile.pieces(held))))


def read_tensors(
    path: str | os.PathLike[str],
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """What `write_tensors` wrote.

    Raises:
        ConfigError: it is not there, or another file.
    """
    place = Path(path).resolve()
    try:
        with fileops.directory(place.parent) as folder:
            tensors = tensorfile.read(fileops.read_file(place.name, folder))
        about = strict_json.loads(tensors.pop("about").numpy().tobytes())
        if about["schema"] != SCHEMA:
            raise ValueError(f"its schema is not {SCHEMA}")
    except OSError as error:
        reason = error.strerror or str(error)
        raise ConfigError(f"{os.fspath(path)!r} cannot be read: {reason}") from error
    except (ValueError, TypeError, LookupError, RecursionError) as error:
        raise _no_recording(path, error) from error
    return about, tensors


def _no_recording(path: str | os.PathLike[str], error: Exception) -> ConfigError:
    return ConfigError(
        f"{os.fspath(path)!r} is no recording of devrun compare --record "
        f"({type(error).__name__}: {one_line(error)}); make it anew"
    )
