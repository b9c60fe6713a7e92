"""Trains the first updates of a config and notes what they do, for `devrun compare`."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import optimizer as optimizers

from devrun.hooks.base import Hook
from devrun.parallel.strategy import optimizers_in
from devrun.rehearsal.bench import DTYPES
from devrun.rehearsal.compare.records import (
    KEPT,
    OF_INPUTS,
    SLACK,
    Key,
    Recording,
    kept,
)
from devrun.run import Run
from devrun.runners.training import Training
from devrun.runners.trial import trial
from devrun.step import Capability, MicroBatches
from devrun.tensors import named_tensors, tensors_in


class Recorder(Hook):
    """Notes what each update does; its inner steps where the device shows them."""

    priority = "LOWEST"

    def __init__(self, recording: Recording, *, shows_steps: bool) -> None:
        self.recording, self.shows_steps = recording, shows_steps
        self._step = self._depth = 0
        self._now: dict[Key, Tensor] = {}
        self._before: list[int] = []  # records before each optimizer's step
        self._calls: dict[tuple[str, str], int] = {}
        self._running: list[str] = []
        self._weights: dict[str, Tensor] = {}
        self._grain: dict[str, float] = {}
        self._handles: list[Any] = []

    def before_run(self, runner: Run) -> None:
        self._weights = _weights(runner)
        self.recording.whole = runner.max_iters or 0
        for name, parameter in runner.model.named_parameters():
            self._grain[name] = torch.finfo(parameter.dtype).eps
        places = self.recording.places
        for name, part in runner.model.named_modules():
            if place := _place(part):
                places[name] = place
        if not self.shows_steps:
            return
        for name, part in runner.model.named_modules():
            given, out = partial(self._note_input, name), partial(self._note_out, name)
            self._handles += [
                part.register_forward_pre_hook(given, with_kwargs=True),
                part.register_forward_hook(out, always_call=True),
            ]
        # of every optimizer, those that a model or a hook steps by itself too
        for register, note in (
            (optimizers.register_optimizer_step_pre_hook, self._before_update),
            (optimizers.register_optimizer_step_post_hook, self._after_update),
        ):
            self._handles.append(register(partial(note, runner)))

    def before_train_iter(self, runner: Run) -> None:
        self._step, self._depth = runner.iter + 1, 0
        self._now, self._before = {}, []
        self._calls.clear()
        self._running.clear()  # a forward pass may have ended by an exception
        for name, tensor in _whole(runner.data_batch):
            self._note("batch", name or "batch", tensor)
        for name, values in _hyperparameters(runner):
            tensor = torch.tensor(values, dtype=torch.float64)
            self._note("hyperparameter", name, tensor)

    def after_train_iter(self, runner: Run) -> None:
        noted, self._now = list(self._now.items()), {}
        outputs: Mapping[str, Any] = runner.outputs or {}
        losses = {k: v for k, v in outputs.get("log_vars", {}).items() if "loss" in k}
        for name, loss in (losses or {"loss": outputs.get("loss")}).items():
            if loss is not None:
                self._note("loss", name, torch.as_tensor(loss, dtype=torch.float32))
        # where several optimizers step, a loss may come after the first of them
        at = self._before[0] if len(self._before) == 1 else len(noted)
        records = self.recording.records
        records.update([*noted[:at], *self._now.items(), *noted[at:]])
        updated = {key.name for key, _ in noted if key.kind == "update"}
        self._note_updates(_weights(runner), updated)
        for name, buffer in runner.model.named_buffers():
            self._note("buffer", name, buffer)
        records.update(self._now)
        self.recording.steps = self._step

    def close(self) -> None:
        for handle in self._handles:
            handle.remove()

    def _note_input(
        self, name: str, module: nn.Module, given: Any, named: Mapping[str, Any]
    ) -> None:
        caller = self._running[-1] if self._running else ""
        for tensor in tensors_in([given, dict(named)]):
            if tensor.is_floating_point():
                self._note("input", name, tensor, caller, OF_INPUTS)
        self._running.append(name)

    def _note_out(self, name: str, module: nn.Module, given: Any, out: Any) -> None:
        while self._running and self._running.pop() != name:
            pass
        for tensor in tensors_in(out):
            if tensor.is_floating_point():
                self._note("activation", name, tensor)

    def _before_update(self, runner: Run, optimizer: Any, *_: Any) -> None:
        self._depth += 1
        if self._depth > 1:  # an optimizer that steps others
            return
        self._before.append(len(self._now))
        own = _own_parameters(runner, optimizer)
        for name, parameter in reversed(own.items()):
            if parameter.grad is not None:
                self._note("gradient", name, parameter.grad)

    def _after_update(self, runner: Run, optimizer: Any, *_: Any) -> None:
        self._depth -= 1
        if not self._depth:
            own = _own_parameters(runner, optimizer)
            now = {n: w for n, w in _weights(runner).items() if n in own}
            self._note_updates(now, set())

    def _note_updates(self, weights: Mapping[str, Tensor], seen: set[str]) -> None:
        """What was added to `weights`; to those of `seen`, where something was.

        One rounding of the sum, as large as the weight, is in the difference.
        """
        for name, weight in weights.items():
            before, self._weights[name] = self._weights.get(name), weight
            added = None if before is None else weight - before
            if added is not None and (name not in seen or added.any()):
                key = self._note("update", name, added)
                grain = self._grain.get(name, 0.0) * weight.norm() / added.norm()
                if key is not None and added.any():
                    self.recording.noise[key] = float(grain) / SLACK

    def _note(
        self, kind: str, name: str, tensor: Tensor, caller: str = "", most: int = KEPT
    ) -> Key | None:
        if not tensor.numel():
            return None
        call = self._calls.get((kind, name), 0)
        self._calls[kind, name] = call + 1
        key = Key(self._step, kind, name, call, caller)
        self._now[key] = kept(tensor, most)
        return key


def _whole(batch: Any) -> Iterator[tuple[str, Tensor]]:
    """Its tensors; those of micro-batches, which a device may stack, in one."""
    parts = batch if isinstance(batch, MicroBatches) else [batch]
    named = [dict(named_tensors(part)) for part in parts]
    for name in named[0]:
        yield name, torch.cat([one[name].reshape(-1) for one in named if name in one])


def _hyperparameters(runner: Run) -> Iterator[tuple[str, list[float]]]:
    """The numbers that the optimizers go by in this update, of each parameter."""
    names = {id(one): name for name, one in runner.model.named_parameters()}
    optimizers = list(optimizers_in(runner.optimizer))
    for index, optimizer in enumerate(optimizers):
        of = f" of optimizer {index}" if len(optimizers) > 1 else ""
        found: dict[str, dict[str, list[float]]] = {}
        for group in optimizer.param_groups:
            owners = [names.get(id(one), "") for one in group["params"]]
            for name, value in group.items():
                values = list(value) if isinstance(value, (tuple, list)) else [value]
                if all(type(each) in (int, float) for each in values):
                    found.setdefault(name, {}).update(dict.fromkeys(owners, values))
        for name, by_owner in found.items():
            yield name + of, [x for _, each in sorted(by_owner.items()) for x in each]


def _own_parameters(runner: Run, optimizer: Any) -> dict[str, nn.Parameter]:
    own = {id(p) for group in optimizer.param_groups for p in group["params"]}
    return {n: p for n, p in runner.model.named_parameters() if id(p) in own}


def _weights(runner: Run) -> dict[str, Tensor]:
    """Those that train, on the host, in float64: their differences are exact."""
    runner.adapter.sync_to_host(runner.model)
    return {
        name: kept(parameter).double()
        for name, parameter in runner.model.named_parameters()
        if parameter.requires_grad
    }


def _place(module: nn.Module) -> str | None:
    """`file:line` of what it runs; None for a module of torch's."""
    if type(module).__module__.partition(".")[0] == "torch":
        return None
    step = getattr(type(module), "train_step", None) or type(module).forward
    code = getattr(inspect.unwrap(step), "__code__", None)
    return f"{code.co_filename}:{code.co_firstlineno}" if code else None


def shows_steps(training: Training) -> bool:
    """Whether the device shows what happens within a step."""
    return Capability.GRAD_ACCESS in training.runner.session.adapter.capabilities


@contextmanager
def prepared(
    cfg: Mapping[str, Any], steps: int, rounding: float, move: int
) -> Iterator[tuple[Training, dict[Key, Tensor]]]:
    """The training of `cfg`, from moved weights, and the rates of dropout it had.

    Devices draw from streams of their own, so nothing is dropped.

    Args:
        rounding: relative size of random changes of the first weights.
        move: the seed of those changes.
    """
    with trial(cfg, steps, exact=True, progress=False) as training:
        model = training.runner.model
        _move_weights(model, rounding, move)
        yield training, _without_dropout(model)


def record(
    cfg: Mapping[str, Any],
    label: str,
    steps: int,
    rounding: float = 0.0,
    move: int = 0,
) -> Recording:
    """Train `cfg`, which has a seed, and keep what every step did; see `prepared`.

    Raises:
        DevrunError: as the training would.
    """
    recording = Recording(label)
    with prepared(cfg, steps, rounding, move) as (training, rates):
        recording.records.update(rates)
        recorder = Recorder(recording, shows_steps=shows_steps(training))
        training.runner.register_hook(recorder)
        try:
            training.run()
        finally:
            recorder.close()
        session = training.runner.session
        precision = session.policy.precision
        tf32 = getattr(getattr(session.adapter, "options", None), "tf32", None)
        # tf32 has the fraction of fp16
        name = "fp16" if tf32 and precision == "fp32" else precision
        recording.epsilon = torch.finfo(DTYPES.get(name, torch.float32)).eps
    return recording


def _move_weights(module: nn.Module, size: float, seed: int) -> None:
    """Change each weight by `size` of itself, up or down by chance; not by 0."""
    if not size:
        return
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in module.parameters():
            sign = torch.randint(0, 2, parameter.shape, generator=generator) * 2 - 1
            parameter.mul_(1 + size * sign.to(parameter.device, parameter.dtype))


def _without_dropout(module: nn.Module) -> dict[Key, Tensor]:
    """Set all rates of dropout to 0; returns them."""
    rates = {}
    for path, part in module.named_modules():
        names = ["p"] if "Drop" in type(part).__name__ else []
        names += [name for name in vars(part) if "drop" in name]
        for name in names:
            rate = getattr(part, name, None)
            if type(rate) is float:
                key = Key(1, "dropout", f"{path}.{name}".lstrip("."))
                rates[key] = torch.tensor([rate], dtype=torch.float64)
                setattr(part, name, 0.0)
    return rates
