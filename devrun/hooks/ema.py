"""`EMAHook`: an exponential moving average of the weights, used for evaluation."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from devrun.config.numbers import whole_number
from devrun.errors import CheckpointError, ConfigError
from devrun.hooks.base import Hook
from devrun.parallel.divided import parts_here, whole_state
from devrun.registry import HOOKS
from devrun.run import Run
from devrun.step import Capability
from devrun.text import joined


@HOOKS.register_module()
class EMAHook(Hook):
    """Keeps `ema = (1 - m) * ema + m * weight`, which begins with the first weights.

    The averaged weights live in this hook and its state; the model has them only
    while it is evaluated, so a checkpoint of the model holds the trained weights.
    `m` is `momentum`, or `(1 + iter) / (warm_up + iter)` while that is smaller.
    Averaging only every `interval` updates keeps the decay per update:
    `m = 1 - (1 - momentum) ** interval`.

    Args:
        momentum: weight of the new value; above 0 and below 1.
        interval: updates from one averaging to the next.
        warm_up: as in the formula above.
        resume_from: checkpoint to resume the whole run from when it starts.
        begin_iter: if given, the average is a copy of the weights until that update
            and at least after the first, as in MMEngine (which has no `warm_up`: 1).
        buffers: `copy` leaves the model's own buffers (BatchNorm statistics) in use;
            `average` averages those of floating point too.
    """

    def __init__(
        self,
        momentum: float = 0.0002,
        interval: int = 1,
        warm_up: int = 100,
        resume_from: str | None = None,
        *,
        begin_iter: int | None = None,
        buffers: str = "copy",
    ) -> None:
        if not 0 < momentum < 1:
            raise ConfigError.of(
                "momentum", f"must be above 0 and below 1, got {momentum!r}"
            )
        if buffers not in ("copy", "average"):
            raise ConfigError.of(
                "buffers", f"must be 'copy' or 'average', got {buffers!r}"
            )
        self.interval = whole_number("interval", interval)
        self.momentum = momentum if interval == 1 else 1 - (1 - momentum) ** interval
        self.warm_up = warm_up
        self.resume_from = resume_from
        self.begin_iter, self.buffers = begin_iter, buffers
        self.averaged: dict[str, Tensor] = {}
        """The averaged weights by name; there from `before_run` on. Where weights are
        divided over processes, what this one has of each."""
        self._model: nn.Module | None = None
        self._saved: dict[str, Any] | None = None
        self._depth = 0

    def before_run(self, runner: Run) -> None:
        if self.resume_from is not None:
            runner.resume(self.resume_from)
            self.resume_from = None
        if self._model is None:
            self._model = runner.model
            self._begin(runner.model)
        if self._saved is not None:
            self._load(runner.model, self._saved)
        if self.swapped_in not in runner.eval_contexts:
            runner.eval_contexts.append(self.swapped_in)

    def after_train_iter(self, runner: Run) -> None:
        weight = self.weight_after(runner.iter)
        if weight is not None:
            self._fetch(runner)
            self._average(runner.model, weight)

    def weight_after(self, done: int) -> float | None:
        """`m` after the update that `done` updates came before; None for no average."""
        if done % self.interval:
            return None
        if self.begin_iter is not None and done < max(self.begin_iter, 1):
            return 1.0
        return min(self.momentum, (1 + done) / (self.warm_up + done))

    @contextlib.contextmanager
    def swapped_in(self, runner: Run) -> Iterator[None]:
        """The model has the averaged weights inside this context."""
        if self._depth == 0:
            self._fetch(runner)
            self._swap(runner)
        self._depth += 1
        try:
            yield
        finally:
            self._depth -= 1
            if self._depth == 0:
                self._swap(runner)

    def before_save_checkpoint(self, runner: Run, checkpoint: dict[str, Any]) -> None:
        if self._depth:
            raise CheckpointError(
                "a checkpoint cannot be saved during evaluation: the model has the "
                "averaged weights; save it after the evaluation"
            )
        # beside the trained weights, for who looks at the best checkpoint
        facts = checkpoint.get("trainer", {}).get("meta")
        if facts is not None:
            facts["evaluated_weights"] = f"hooks/{type(self).__name__}/model"

    def after_load_checkpoint(self, runner: Run, checkpoint: dict[str, Any]) -> None:
        """Say if it has no average."""
        name = type(self).__name__
        if name not in checkpoint.get("hooks", {}):
            runner.logger.warning(
                "the checkpoint has no averaged weights: %s begins anew, with the "
                "trained weights in it",
                name,
            )

    def state_dict(self) -> dict[str, Any]:
        """The averaged weights under the model's own names, with all its buffers."""
        if self._model is None:
            return self._saved or {}
        state = self._model.state_dict(keep_vars=True)
        # by identity: a tied weight has several names
        averaged = {id(v): self.averaged[k] for k, v in self._own(self._model).items()}
        found = {k: averaged.get(id(v), v).detach() for k, v in state.items()}
        return {"model": whole_state(self._model, found)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Taken at once, or in `before_run` when there is no model yet."""
        if self._model is None:
            self._saved = state
        else:
            self._load(self._model, state)

    def _load(self, model: nn.Module, state: dict[str, Any]) -> None:
        """By way of the model, which knows how its weights are divided."""
        trained = {name: value.clone() for name, value in model.state_dict().items()}
        try:
            model.load_state_dict(state["model"])
            self._begin(model)
        except RuntimeError as error:
            cause = joined(error)
            raise CheckpointError(
                f"the averaged weights in the checkpoint do not fit: {cause}"
            ) from error
        finally:
            model.load_state_dict(trained)
        self._saved = None

    def _own(self, model: nn.Module) -> dict[str, Tensor]:
        """What of `model` is averaged."""
        buffers = model.named_buffers() if self.buffers == "average" else ()
        return {**dict(model.named_parameters()), **dict(buffers)}

    def _begin(self, model: nn.Module) -> None:
        """The average is what the model has now."""
        own = self._own(model).items()
        self.averaged = {name: value.detach().clone() for name, value in own}

    @torch.no_grad()
    def _average(self, model: nn.Module, weight: float) -> None:
        means: list[Tensor] = []
        news: list[Tensor] = []
        pairs = zip(self.averaged.values(), self._own(model).values())
        for mean, new in (parts_here(pair) for pair in pairs):
            if mean.is_floating_point() or mean.is_complex():
                means.append(mean)
                news.append(new)
            else:
                mean.copy_(new)
        torch._foreach_lerp_(means, news, weight)

    def _fetch(self, runner: Run) -> None:
        if Capability.HOST_WEIGHTS not in runner.adapter.capabilities:
            runner.adapter.sync_to_host(runner.model)

    @torch.no_grad()
    def _swap(self, runner: Run) -> None:
        # Contents, not storages: optimizers, wrappers and captured graphs hold those.
        own = self._own(runner.model).values()
        for mine, theirs in zip(parts_here(self.averaged.values()), parts_here(own)):
            kept = theirs.detach().clone()
            theirs.copy_(mine)
            mine.copy_(kept)
        if Capability.HOST_WEIGHTS not in runner.adapter.capabilities:
            runner.adapter.sync_to_device(runner.model)
