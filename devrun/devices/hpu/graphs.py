"""Graphs of a model that are replayed in training, and captures of whole updates."""

from __future__ import annotations

import contextlib
import copy
import logging
import types
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from devrun.devices.frozen import CaptureWatch, Finding
from devrun.devices.hpu.lazy import cached_forward
from devrun.devices.hpu.sdk import SDK
from devrun.devices.snapshot import Snapshot
from devrun.errors import DevrunError, UnsupportedFeatureError, is_out_of_memory
from devrun.tensors import tensors_in
from devrun.text import joined

logger = logging.getLogger("devrun")


class GraphedForward:
    """Stands for the `forward` of `module`, which it replays from captured graphs.

    Each shape is captured once, up to `max_graphs`; batches of further shapes, and of
    a known shape in another type (the SDK would take them for the same), run as they
    are and are counted in `uncaptured`. What a graph would freeze of the host's state,
    as numbers of `numpy.random`, is in `findings`: it is reported where graphs are
    `required`, and the module else runs without.

    Args:
        required: a module that cannot be captured is an error; else a warning.

    Raises:
        UnsupportedFeatureError: the SDK refuses the module, and graphs are `required`.
    """

    def __init__(
        self,
        sdk: SDK,
        module: nn.Module,
        *,
        max_graphs: int,
        accumulates: bool,
        required: bool,
    ) -> None:
        self._module = module
        self._plain = module.forward
        self._max_graphs = max_graphs
        self._required = required
        self._types: dict[Any, Any] = {}
        self.on = True
        self.refused = False
        """It runs without graphs from here on, which was logged."""
        self.uncaptured = 0
        self.findings: list[Finding] = []
        self._watched = False
        self._replay: Callable[..., Any] = self._plain
        try:
            self._replay = cached_forward(
                sdk, module, max_graphs=max_graphs, accumulates=accumulates
            )
        except AssertionError as error:
            self._refuse(str(error), error)
        vars(module)["forward"] = self

    @property
    def captured(self) -> int:
        """Shapes that have a graph."""
        return len(self._types)

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
        training = self._module.training and torch.is_grad_enabled()
        if not (self.on and training):
            if training and not (self._watched or self._required):
                return self._watch(self._plain, args, kwargs)
            return self._plain(*args, **kwargs)
        tensors = list(tensors_in((args, kwargs)))
        shapes = tuple(t.shape for t in tensors)
        kinds = tuple(t.dtype for t in tensors)
        known = self._types.get(shapes)
        if known == kinds:
            return self._replay(*args, **kwargs)
        if known is None and len(self._types) < self._max_graphs:
            return self._capture(shapes, kinds, args, kwargs)
        self.uncaptured += 1
        if self.uncaptured == 1:
            why = "a shape beyond max_graphs" if known is None else "another type"
            logger.warning(
                "hpu: a batch with %s runs without a graph (%s captured); pad batches "
                "to few shapes or raise max_graphs",
                why,
                self.captured,
            )
        return self._plain(*args, **kwargs)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        # a copy of the module (an average of its weights) has no graphs
        module = memo.get(id(self._module))
        if module is None:
            return copy.copy(self)
        return types.MethodType(type(self._module).forward, module)

    def _capture(self, shapes: Any, kinds: Any, args: Any, kwargs: Any) -> Any:
        before = Snapshot(self._module.buffers())
        try:
            outputs = self._watch(self._replay, args, kwargs)
        except (RuntimeError, AssertionError) as error:
            if isinstance(error, DevrunError) or is_out_of_memory(error):
                raise
            before.put_back()
            self._refuse(str(error), error)
            return self._plain(*args, **kwargs)
        self._types[shapes] = kinds
        return outputs

    def _watch(self, forward: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """`forward(...)`, and what of the host's state a graph of it would freeze."""
        self._watched = True
        with CaptureWatch(self._module, host_torch=True) as watch:
            outputs = forward(*args, **kwargs)
        for finding in watch.findings:
            if finding in self.findings:
                continue
            if self._required:
                self.findings.append(finding)
                logger.warning("%s", finding.message("hpu graphs"))
            elif not self.refused:
                at = f" at {finding.site}" if finding.site else ""
                self._refuse(
                    f"its forward pass {finding.what}{at}, in Python, which a graph "
                    "does once"
                )
        return outputs

    def _refuse(self, error: str, cause: Exception | None = None) -> None:
        self.on, self.refused = False, True
        said = joined(error)
        name = type(self._module).__name__
        if self._required:
            raise UnsupportedFeatureError(
                f"{name} cannot be captured in an HPU graph: {said}; change that, or "
                "set graphs: false",
                key="graphs",
            ) from cause
        logger.warning("hpu: %s runs without graphs: %s", name, said)


class Captures:
    """The SDK's graphs of whole updates, for `devrun.devices.captured`."""

    waits: str | None = None
    """Never: the SDK refuses in a capture what waits."""

    def __init__(self, sdk: SDK) -> None:
        self._hpu = sdk.hpu

    def aside(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    def capture(self, work: Callable[[], Any]) -> tuple[Callable[[], None], Any]:
        graph = self._hpu.HPUGraph()
        with self._hpu.graph(graph):
            outputs = work()
        return graph.replay, outputs

    def free(self) -> None:
        """A graph's memory goes with its object."""
