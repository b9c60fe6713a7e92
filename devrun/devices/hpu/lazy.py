"""What exists only in lazy mode: step markers and graphs of whole modules.

Lazy mode is the vendor's older way; what replaces it is to be changed nowhere else.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn
from torch.optim import Optimizer

from devrun.devices.hpu.sdk import SDK


class Markers:
    """Ends a graph after each backward pass and after each update.

    Where gradients are accumulated, a module replayed from graphs is told which
    micro-batch comes next.
    """

    def __init__(self, sdk: SDK) -> None:
        self._mark = sdk.core.mark_step
        self._micro_batch = 0
        self.on_micro_batch: Callable[[int], None] | None = None

    def after_prepare(self) -> None:
        """Copying weights to the device is not part of the first update's graph."""
        self._mark()

    def after_backward(self) -> None:
        self._mark()
        self._set_micro_batch(self._micro_batch + 1)

    def after_update(self) -> None:
        self._mark()
        self._set_micro_batch(0)

    def around_steps(self, optimizer: Optimizer) -> list[Any]:
        """For updates done elsewhere: marks before and after each `step`."""
        before = optimizer.register_step_pre_hook(lambda *_: self.after_backward())
        after = optimizer.register_step_post_hook(lambda *_: self.after_update())
        return [before, after]

    def _set_micro_batch(self, number: int) -> None:
        self._micro_batch = number
        if self.on_micro_batch is not None:
            self.on_micro_batch(number)


def cached_forward(
    sdk: SDK, module: nn.Module, *, max_graphs: int, accumulates: bool
) -> Callable[..., Any]:
    """A forward of `module` that captures a graph pair for each shape and replays it.

    The module gets `set_iteration_count` where it `accumulates`.

    Raises:
        AssertionError: the SDK does not accept this module; its message says why.
    """
    sdk.hpu.ModuleCacher(max_graphs)(
        module,
        inplace=True,
        allow_unused_input=True,
        have_grad_accumulation=accumulates,
        verbose=False,
    )
    replaying: Callable[..., Any] = vars(module).pop("forward")
    return replaying
