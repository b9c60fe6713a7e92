"""`Called`: a probe that tries the model again, as the first updates called it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from typing import Any

from torch import nn

from devrun.rehearsal.check.aside import aside
from devrun.rehearsal.check.findings import Finding
from devrun.rehearsal.check.probe import Probe
from devrun.runners.training import Training
from devrun.tensors import tensors_in


class Called(Probe):
    """Keeps the arguments of `most` calls, each of other shapes."""

    most = 1

    def built(self, training: Training) -> None:
        self.calls: dict[Any, tuple[Any, Any]] = {}
        model = training.runner.model

        # a method would be copied with the model
        def called(model: nn.Module, args: Any, kwargs: Any) -> None:
            if model.training and len(self.calls) < self.most:
                shapes = tuple(tuple(one.shape) for one in tensors_in((args, kwargs)))
                self.calls.setdefault(shapes, (args, kwargs))

        self._handle = model.register_forward_pre_hook(called, with_kwargs=True)

    def after(self, training: Training) -> Iterable[Finding]:
        self._handle.remove()
        return self.tried(training) if self.calls else ()

    def tried(self, training: Training) -> Iterator[Finding]:
        """What comes of trying it again."""
        raise NotImplementedError

    def aside(self, training: Training, work: Callable[[], Any]) -> Any:
        """What `work` returns, as `aside` has it, in the precision of the training."""
        adapter: Any = training.runner.adapter

        def inside() -> Any:
            with adapter.update.autocast or nullcontext():
                return work()

        return aside(self.request, inside)
