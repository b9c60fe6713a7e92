"""What objects that a registry holds must be able to do, where no class says it."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable


@runtime_checkable
class Metric(Protocol):
    """What a metric does, in torchmetrics' words."""

    def update(self, *args: Any, **kwargs: Any) -> None: ...
    def compute(self) -> Any: ...
    def reset(self) -> None: ...


@runtime_checkable
class Transform(Protocol):
    def __call__(self, *args: Any, **kwargs: Any) -> Any: ...
