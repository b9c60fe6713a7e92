"""`ModelContract`: how a model is trained that keeps none of the plain contracts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from devrun.models.calls import Wrapped


class ModelContract(Protocol):
    """Stands between one model and the run that it is given to.

    Whoever knows the model's kind makes it; the runner, the session and the step module
    know this alone.
    """

    brings_optimizer: bool
    """Whether the model may make its optimizer, so that a config needs none."""
    batches: int | None
    """Of an epoch of all processes, once the loader is known; the session writes it."""
    stacked: Callable[[Wrapped, Any, str], Any] | None
    """Makes tensors of a batch, `stacked(step_module, batch, mode)`, for a device that
    compiles a step; None where its batches are tensors."""

    def join(self, run: Any, optimizer: Any, loss: Any) -> None:
        """The model takes part in `run`, which was given `optimizer` and `loss`.

        Raises:
            ConfigError: one of the two contradicts the model.
        """
        ...

    def optimizer(self) -> Any:
        """The one that the model brings, or None; asked once, where none is given."""
        ...

    def step(self, step: Wrapped, batch: Any, mode: str) -> dict[str, Any]:
        """One step: what `StepModule.forward` returns, but `log_vars` may lack the
        loss."""
        ...
