"""`Compiles`: where `torch.compile` would break the graph, or compile again."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ClassVar
from unittest.mock import patch

import torch
from torch import nn

from devrun.probes import sites
from devrun.probes.aside import aside
from devrun.probes.compile_log import GRAPH_BREAK, MEANS, RECOMPILATION, CompileLog
from devrun.probes.finding import Finding
from devrun.probes.keys import asked_of
from devrun.probes.probe import Probe, Training
from devrun.tensors import map_tensors
from devrun.torch_features import uncompiled

_CALLS = 8
"""Of each that are traced: more than the graphs that every training has."""
_TRACED = ("fullgraph", "dynamic")
"""Arguments of torch.compile that say how to trace."""
_DYNAMIC = (
    "torch.compile(..., dynamic=True) for sizes that change; numbers that do in tensors"
)
_NUMBERS = (bool, int, float, str)


@dataclass
class _Compiled:
    """What is compiled, and its first calls.

    Attributes:
        how: arguments of `torch.compile`.
        calls: of each whether it had gradients, the numbers that modules held, and
            its arguments.
    """

    made: Any
    how: Mapping[str, Any]
    calls: list[tuple[bool, Any, Any, Any]] = field(default_factory=list)
    compiler: ClassVar[Any] = staticmethod(torch.compile)
    _handle: Any = None
    """Of the hook by which a module says that it is called."""

    def listen(self) -> None:
        """Note the calls of `made`, a module, until it is traced."""

        def called(_: nn.Module, args: Any, kwargs: Any) -> None:
            self.called(args, kwargs)

        hook = self.made.register_forward_pre_hook(called, with_kwargs=True)
        self._handle = hook

    def leave(self) -> None:
        if self._handle is not None:
            self._handle.remove()

    def called(self, args: Any, kwargs: Any) -> None:
        if len(self.calls) < _CALLS:
            owners = (self.made, getattr(self.made, "__self__", None), *args[:1])
            modules = {
                m for o in owners if isinstance(o, nn.Module) for m in o.modules()
            }
            numbers = [(one, _numbers(one)) for one in modules]
            given = map_tensors(_detached, (args, kwargs))
            self.calls.append((torch.is_grad_enabled(), numbers, *given))

    def traced(self) -> Iterator[Finding]:
        """Call it again, traced, as often as it was called."""
        how = {key: self.how[key] for key in _TRACED if key in self.how}
        again = self.compiler(self.made, backend="eager", **how)
        for gradients, numbers, args, kwargs in self.calls:
            for module, held in numbers:
                vars(module).update(held)
            with torch.set_grad_enabled(gradients):
                try:
                    again(*args, **kwargs)
                except Exception as error:  # noqa: BLE001 - the user's own: told before
                    if (
                        self.how.get("fullgraph")
                        and "_dynamo" in type(error).__module__
                    ):
                        why, remedy = MEANS[GRAPH_BREAK]
                        row = (GRAPH_BREAK, "fullgraph=True", why, remedy)
                        yield Finding("breaks", *row, sites.of_error(error))
                    return


class Compiles(Probe):
    """Has Dynamo trace once more what the config or the user's code compiles, which
    runs as it is written until then."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self._own: list[_Compiled] = []
        self._asked: Any = None

    def throughout(self) -> AbstractContextManager[Any]:
        return patch.object(torch, "compile", self._compile)

    def getting_past(self) -> AbstractContextManager[Any]:
        """Operators within what the user compiles would not be seen."""
        return uncompiled()

    def _compile(self, made: Any = None, **how: Any) -> Any:
        if made is None:  # a decorator with arguments
            return partial(self._compile, **how)
        compiled = _Compiled.compiler(made, **how)
        return compiled if sites.asking() is None else self._seen(made, how, compiled)

    def _seen(self, made: Any, how: Any, compiled: Any) -> Any:
        one = _Compiled(made, how)
        self._own.append(one)
        if isinstance(made, nn.Module):
            one.listen()
            return compiled

        @functools.wraps(made)
        def call(*args: Any, **kwargs: Any) -> Any:
            one.called(args, kwargs)
            return compiled(*args, **kwargs)

        return call

    def before(self, cfg: Any) -> None:
        self._asked = asked_of(cfg, self.request.device).get("compile")

    def built(self, training: Training) -> None:
        if self._asked:
            self._own.append(_Compiled(training.runner.model, {}))
            self._own[-1].listen()

    def after(self, training: Training) -> Iterator[Finding]:
        if any(one.calls for one in self._own):
            for one in aside(partial(_traced, self._own, training.runner.adapter)):
                again = one.kind == RECOMPILATION
                yield replace(one, remedy=_DYNAMIC) if again else one


def _traced(compiled: list[_Compiled], adapter: Any) -> list[Finding]:
    """What the compiler says, in a process of its own."""
    import torch._dynamo as dynamo

    dynamo.reset()
    log = CompileLog()
    found: list[Finding] = []
    with adapter.update.autocast or nullcontext():
        for one in compiled:  # one may be a part of another
            one.leave()
        for one in compiled:
            found += one.traced()
    return [*found, *log.findings()]


def _numbers(module: nn.Module) -> dict[str, Any]:
    return {k: v for k, v in vars(module).items() if isinstance(v, _NUMBERS)}


def _detached(tensor: Any) -> Any:
    with suppress(RuntimeError):  # it cannot have a gradient
        return tensor.detach().requires_grad_(tensor.requires_grad)
    return tensor
