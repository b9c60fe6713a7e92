"""What exists only in lazy mode: step markers and graphs of whole modules.

Lazy mode is the vendor's older way; what replaces it is to be changed nowhere else.
"""

from __future__ import annotations

import copy
import logging
import types
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from devrun.devices.capture import CaptureWatch, Finding
from devrun.devices.hpu.sdk import SDK
from devrun.errors import DevrunError, UnsupportedFeatureError, is_out_of_memory
from devrun.tensors import tensors_in
from devrun.text import joined

logger = logging.getLogger("devrun")


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


class Generating(nn.Module):
    """The step of a model, as a module of its own for the SDK to wrap."""

    def __init__(self, step: nn.Module) -> None:
        super().__init__()
        self.step = step

    def forward(self, batch: Any, mode: str) -> Any:
        return self.step(batch, mode)


class GraphedForward:
    """Stands for the `forward` of `module`, which it replays from captured graphs.

    Each shape is captured once, up to `max_graphs`; batches of further shapes, and of
    a known shape in another type (the SDK would take them for the same), run as they
    are. What a graph would freeze of the host's state is in `findings`.

    Raises:
        UnsupportedFeatureError: the SDK refuses the module.
    """

    def __init__(
        self, sdk: SDK, module: nn.Module, *, max_graphs: int, accumulates: bool
    ) -> None:
        self._module = module
        self._plain = module.forward
        self._max_graphs = max_graphs
        self._types: dict[Any, Any] = {}
        self._warned = False
        self.findings: list[Finding] = []
        try:
            sdk.hpu.ModuleCacher(max_graphs)(
                module,
                inplace=True,
                allow_unused_input=True,
                have_grad_accumulation=accumulates,
                verbose=False,
            )
        except AssertionError as error:
            raise self._refusal(error) from error
        self._replay: Callable[..., Any] = vars(module).pop("forward")
        vars(module)["forward"] = self

    def set_micro_batch(self, number: int) -> None:
        """The next call is for this micro-batch of the update."""
        tell = vars(self._module).get("set_iteration_count")
        if tell is not None:
            tell(number)

    def remove(self) -> None:
        """The module's own forward again."""
        for name in ("forward", "set_iteration_count"):
            vars(self._module).pop(name, None)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not (self._module.training and torch.is_grad_enabled()):
            return self._plain(*args, **kwargs)
        tensors = list(tensors_in((args, kwargs)))
        shapes = tuple(t.shape for t in tensors)
        kinds = tuple(t.dtype for t in tensors)
        known = self._types.get(shapes)
        if known == kinds:
            return self._replay(*args, **kwargs)
        if known is None and len(self._types) < self._max_graphs:
            return self._capture(shapes, kinds, args, kwargs)
        if not self._warned:
            self._warned = True
            why = "a shape beyond max_graphs" if known is None else "another type"
            logger.warning(
                "hpu: a batch with %s runs without a graph (%s captured); pad batches "
                "to few shapes or raise max_graphs",
                why,
                len(self._types),
            )
        return self._plain(*args, **kwargs)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        # a copy of the module (an average of its weights) has no graphs
        module = memo.get(id(self._module))
        if module is None:
            return copy.copy(self)
        return types.MethodType(type(self._module).forward, module)

    def _capture(self, shapes: Any, kinds: Any, args: Any, kwargs: Any) -> Any:
        try:
            with CaptureWatch(self._module) as watch:
                outputs = self._replay(*args, **kwargs)
        except (RuntimeError, AssertionError) as error:
            if isinstance(error, DevrunError) or is_out_of_memory(error):
                raise
            raise self._refusal(error) from error
        for finding in watch.findings:
            if finding not in self.findings:
                self.findings.append(finding)
                logger.warning("%s", finding.message("hpu graphs"))
        self._types[shapes] = kinds
        return outputs

    def _refusal(self, error: Exception) -> UnsupportedFeatureError:
        return UnsupportedFeatureError(
            f"{type(self._module).__name__} cannot be captured in an HPU graph: "
            f"{joined(error)}; change that, or set graphs: false",
            key="graphs",
        )
