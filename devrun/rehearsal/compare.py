"""Where two trainings part: the same seed, data and first weights, step by step.

A training is recorded at every step of its first updates: what its modules put out, the
loss, each gradient, what the update adds to each weight. Two recordings are laid over
each other in the order of execution; the first over its tolerance is where they part,
since all that went into it still agreed.

The tolerance is measured, not chosen: the training of the coarser precision is run
again with its first weights moved by one rounding of it. How far that carries its
records is how far rounding alone may carry another device's.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from devrun.errors import ConfigError
from devrun.hooks.base import Hook
from devrun.rehearsal.ulps import ulps
from devrun.run import Run
from devrun.runners.training import build_training
from devrun.step import Capability, UpdatePolicy
from devrun.tensors import tensors_in

__all__ = ["SCHEMA", "Comparison", "Parting", "Recording", "compare", "record"]

SCHEMA = "devrun.compare/1"
SLACK = 4.0
"""Times the measured effect of one rounding that is still rounding: a step rounds once
an operation, the measurement once a weight."""
MOVES = 3
"""Measurements of it; the largest effect counts."""
FEWEST_ULPS = 4.0
"""Roundings that are always allowed, for records which that one did not reach."""
KEPT = 1 << 18
"""Values of a tensor that are compared at most, spread over it evenly."""
PRECISIONS = {"fp64": torch.float64, "fp32": torch.float32,
              "bf16": torch.bfloat16, "fp16": torch.float16}  # fmt: skip
ORDER = ("activation", "loss", "gradient", "update")


@dataclass(frozen=True)
class Key:
    """What a record is of: `call` counts a module's runs within the step."""

    step: int
    kind: str
    name: str
    call: int = 0


@dataclass
class Recording:
    """A training's records in the order in which they came."""

    label: str
    precision: str
    records: dict[Key, Tensor] = field(default_factory=dict)
    seen: set[str] = field(default_factory=set)
    """Kinds of records that the device can give."""


@dataclass(frozen=True)
class Parting:
    """Where two trainings part.

    Attributes:
        step: of the update, from 1.
        kind: `activation`, `loss`, `gradient`, or `update` of a weight.
        name: the module or the parameter; `loss` of the loss.
        difference: relative, the norm of the difference over that of the first.
        tolerance: the same, that rounding may cause.
        ulps: median over the values, in units in the last place of the precision.
        worst: the largest difference of a value, over the largest value.
        cause: what usually makes this kind of record part first.
    """

    step: int
    kind: str
    name: str
    difference: float
    tolerance: float
    ulps: float
    worst: float
    cause: str


@dataclass(frozen=True)
class Comparison:
    """The result of `compare`; `parting` is None where they agree to the end."""

    first: str
    second: str
    steps: int
    records: int
    kinds: list[str]
    """Kinds of records that both have."""
    closest: float
    """The largest difference over its tolerance until they part; 1 is the limit."""
    parting: Parting | None
    missing: list[str]
    """Records of these kinds that only one of them has, the first few."""
    schema: str = SCHEMA

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


CAUSES = {
    "activation": "another formula in this module: a mask, a precision of its own, a "
    "different mode (train or eval), a random stream, or weights that were not loaded",
    "loss": "the loss is computed otherwise: its reduction, its scale, or the targets",
    "gradient": "backward differs while forward agrees: a custom backward, gradients "
    "not averaged over replicas or micro-batches, clipping, or a frozen part",
    "update": "the update differs while the gradients agree: learning rate, epsilon, "
    "momentum or weight decay of the optimizer, their order, or a fused optimizer",
}


class UpdateRecorder(Hook):
    """Notes the loss and the change of the weights by each step, on the host."""

    priority = "LOWEST"

    def __init__(self, recording: Recording) -> None:
        self.recording = recording
        self._step = 0
        self._weights: dict[str, Tensor] = {}

    def before_run(self, runner: Run) -> None:
        self._weights = self._held(runner)

    def before_train_iter(self, runner: Run) -> None:
        self._step = runner.iter + 1

    def after_train_iter(self, runner: Run) -> None:
        outputs: Mapping[str, Any] = runner.outputs or {}
        loss = outputs.get("log_vars", {}).get("loss", outputs.get("loss"))
        if loss is not None:
            self._note("loss", "loss", torch.as_tensor(loss))
        before, self._weights = self._weights, self._held(runner)
        for name, weight in self._weights.items():
            if name in before:
                self._note("update", name, weight - before[name])

    def _held(self, runner: Run) -> dict[str, Tensor]:
        """The weights that train, on the host."""
        runner.adapter.sync_to_host(runner.model)
        return {
            name: _kept(parameter)
            for name, parameter in runner.model.named_parameters()
            if parameter.requires_grad
        }

    def _note(self, kind: str, name: str, tensor: Tensor, call: int = 0) -> None:
        if not tensor.is_floating_point() or tensor.numel() == 0:
            return
        self.recording.records[Key(self._step, kind, name, call)] = _kept(tensor)
        self.recording.seen.add(kind)


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


def _kept(tensor: Tensor) -> Tensor:
    """At most `KEPT` values of `tensor`, copied to the host in float64."""
    values = tensor.detach().reshape(-1)
    stride = max(-(-values.numel() // KEPT), 1)
    return values[::stride].to("cpu", torch.float64, copy=True)


def record(
    cfg: Mapping[str, Any],
    label: str,
    *,
    steps: int,
    rounding: float = 0.0,
    move: int = 0,
) -> Recording:
    """Train for `steps` updates, write nothing, and keep what every step did.

    Args:
        cfg: a checked config with a seed.
        label: the training's name in what is said.
        rounding: relative size of random changes of the first weights.
        move: the seed of those changes.

    Raises:
        DevrunError: as the training would.
    """
    training = build_training(
        cfg, validate=False, dry_run=True, dry_batches=steps, progress=False
    )
    runner = training.runner
    recording = Recording(label, "fp32")
    single = Capability.GRAD_ACCESS in runner.session.adapter.capabilities
    runner.register_hook((Recorder if single else UpdateRecorder)(recording))
    with closing(runner):
        module = runner.model
        if rounding:
            _move(module, rounding, move)
        _without_dropout(module)
        training.run()
        policy: UpdatePolicy = runner.session.policy
        recording.precision = policy.precision
    return recording


def _move(module: nn.Module, size: float, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in module.parameters():
            sign = torch.randint(0, 2, parameter.shape, generator=generator) * 2 - 1
            parameter.mul_(1 + size * sign.to(parameter.device, parameter.dtype))


def _without_dropout(module: nn.Module) -> None:
    """Devices draw from streams of their own, so what is drawn is left out of it."""
    for part in module.modules():
        names = ["p"] if "Drop" in type(part).__name__ else []
        names += [name for name in vars(part) if "drop" in name]
        for name in names:
            if type(getattr(part, name, None)) is float:
                setattr(part, name, 0.0)


def compare(
    first: Mapping[str, Any],
    second: Mapping[str, Any],
    labels: tuple[str, str],
    *,
    steps: int = 5,
) -> Comparison:
    """Run both, lay them over each other, and say where they part.

    Args:
        first, second: checked configs, of the same model and data.
        labels: their names in what is said.
        steps: updates.

    Raises:
        ConfigError: `steps` is below 1, or the trainings have no record in common.
        DevrunError: one of them cannot be built or run.
    """
    if steps < 1:
        raise ConfigError(f"--steps must be 1 or more, got {steps}")
    one = record(first, labels[0], steps=steps)
    two = record(second, labels[1], steps=steps)
    # only the coarser has its own noise: what cancels exactly in fp32 does not in bf16
    coarser = max((one, first), (two, second), key=lambda side: _epsilon(side[0]))
    moved = [
        record(coarser[1], "moved", steps=steps, rounding=_epsilon(coarser[0]), move=m)
        for m in range(MOVES)
    ]
    return laid_over(one, two, coarser[0], moved)


def laid_over(
    one: Recording, two: Recording, coarser: Recording, moved: Sequence[Recording]
) -> Comparison:
    """The first record over its tolerance, in the order of execution.

    Args:
        coarser: the one of the two with the coarser precision.
        moved: the same training from moved weights.
    """
    keys = [key for key in one.records if key in two.records]
    if not keys:
        raise ConfigError(
            f"{one.label} and {two.label} have no record in common: their models have "
            "other names for everything"
        )
    kinds = [kind for kind in ORDER if kind in one.seen & two.seen]
    odd = one.records.keys() ^ two.records.keys()
    missing = [k for k in (*one.records, *two.records) if k in odd and k.kind in kinds]
    epsilon = _epsilon(coarser)
    closest, parting = 0.0, None
    for key in sorted(keys, key=lambda k: (k.step, ORDER.index(k.kind))):
        a, b = one.records[key], two.records[key]
        base = coarser.records[key]
        carried = [_distance(base, m.records[key]) for m in moved if key in m.records]
        tolerance = max(FEWEST_ULPS * epsilon, SLACK * max(carried, default=0.0))
        distance = _distance(a, b)
        if not distance <= tolerance:
            parting = _parting(key, a, b, distance, tolerance, coarser.precision)
            break
        closest = max(closest, distance / tolerance)
    return Comparison(
        first=one.label,
        second=two.label,
        steps=max(key.step for key in keys),
        records=len(keys),
        kinds=kinds,
        closest=closest,
        parting=parting,
        missing=[f"{k.kind} {k.name} of step {k.step}" for k in missing[:5]],
    )


def _distance(a: Tensor, b: Tensor) -> float:
    """Norm of the difference over the norm; infinite where shapes, or NaNs, differ."""
    if a.shape != b.shape:
        return math.inf
    finite = torch.isfinite(a)
    if not torch.equal(finite, torch.isfinite(b)):
        return math.inf
    difference = (a - b)[finite].norm()
    scale = a[finite].norm()
    return float(difference / scale) if scale > 0 else float(difference)


def _parting(
    key: Key, a: Tensor, b: Tensor, distance: float, tolerance: float, precision: str
) -> Parting:
    same = a.shape == b.shape
    worst = float((a - b).abs().max() / a.abs().max()) if same else math.inf
    units = ulps(a, b, PRECISIONS[precision]) if same else math.inf
    return Parting(
        step=key.step,
        kind=key.kind,
        name=key.name + (f" (run {key.call + 1})" if key.call else ""),
        difference=distance,
        tolerance=tolerance,
        ulps=units,
        worst=worst,
        cause=CAUSES[key.kind],
    )


def _epsilon(recording: Recording) -> float:
    return torch.finfo(PRECISIONS.get(recording.precision, torch.float32)).eps
