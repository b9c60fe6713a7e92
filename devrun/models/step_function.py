"""`StepFunction`: a training that is a function, without a data set or an optimizer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset

from devrun.errors import ConfigError


class StepFunction(nn.Module):
    """The state of a program, and the function that takes it a step further.

    A runner trains it as any model, by `runner.run()`: hooks, logs and checkpoints are
    the same, and a resumed run goes on from the saved state.

    Args:
        step: `step(number, **state)` returns the next state, and what to log. `number`
            counts from 0; draws that depend on it are the same in a resumed run.
        state: the tensors to begin with, by name.

    Raises:
        ConfigError: a step returns another state than it was given.
    """

    def __init__(
        self,
        step: Callable[..., tuple[dict[str, Tensor], dict[str, Any]]],
        **state: Tensor,
    ) -> None:
        super().__init__()
        self._step, self._names = step, tuple(state)
        for name, value in state.items():
            self.register_buffer(name, value.clone())

    def forward(self, number: int) -> dict[str, Any]:
        """Take the step; what it logs."""
        held = dict(self.named_buffers())
        state, log_vars = self._step(number, **held)
        different = {n for n in {*state, *held} if not _fits(state.get(n), held.get(n))}
        if different:
            raise ConfigError(
                f"a step returned another {', '.join(sorted(different))} than it was "
                f"given: return each of {', '.join(self._names)} in its shape and dtype"
            )
        with torch.no_grad():
            for name, value in state.items():
                held[name].copy_(value)
        return log_vars

    def train_step(self, data: Any, optimizer: Any, **kwargs: Any) -> dict[str, Any]:
        """As a runner calls it; there is nothing for an optimizer to do."""
        log_vars = self(int(data))
        return {"loss": None, "log_vars": log_vars, "num_samples": 1}

    def steps(self) -> DataLoader[int]:
        """What `runner.run()` reads: the numbers of the steps."""
        return DataLoader(_Numbers(), batch_size=None)


def own_loaders(model: nn.Module) -> list[DataLoader[int]]:
    """What a model is trained on that was given no data.

    Raises:
        ConfigError: it needs some.
    """
    if isinstance(model, StepFunction):
        return [model.steps()]
    raise ConfigError(
        f"run() was given no data loader to train {type(model).__name__} on; only a "
        "devrun.models.StepFunction needs none"
    )


class _Numbers(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        number = 0
        while True:
            yield number
            number += 1


def _fits(value: Any, held: Any) -> bool:
    tensors = isinstance(value, Tensor) and isinstance(held, Tensor)
    return tensors and (value.shape, value.dtype) == (held.shape, held.dtype)
