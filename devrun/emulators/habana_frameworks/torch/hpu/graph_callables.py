"""Turning callables into replays of a forward and a backward recording."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Tuple

import torch
from torch import Tensor, nn

from habana_frameworks._emulation.capture import CAPTURE, Recording
from habana_frameworks._emulation.dispatch import sync
from habana_frameworks._emulation.lazy import flush
from habana_frameworks._emulation.recorder import GRAPH_SKIPPED, RECORDER
from habana_frameworks._emulation.support import paired
from habana_frameworks._emulation.torch_private import has_hooks

Tensors = Tuple[Tensor, ...]


def recorded(work: Callable[[], Any]) -> tuple[Recording, Any]:
    """Run `work` and keep a recording of it; the recording ends on errors too."""
    flush("capture")
    recording = CAPTURE.begin()
    try:
        result = work()
    finally:
        CAPTURE.end()
        flush("capture")
    return recording, result


def replay(recording: Recording) -> None:
    """One launch of everything recorded."""
    flush("graph replay")
    RECORDER.totals["launch"] += 1
    RECORDER.totals["graph_replay"] += 1
    recording.replay()


def fill(static: Sequence[Tensor], given: Sequence[Tensor]) -> None:
    """Copy into static inputs; RuntimeError for another shape than was recorded."""
    for number, (target, source) in enumerate(paired(static, given)):
        if target is source:
            continue
        if target.shape != source.shape:
            raise RuntimeError(
                f"input {number} of a hpu graph has shape {tuple(source.shape)}, "
                f"recorded was {tuple(target.shape)}: record a graph for each shape"
            )
        if target.dtype is not source.dtype:
            RECORDER.note(GRAPH_SKIPPED, f"dtype of input {number} is not recorded's")
        with torch.no_grad():
            target.copy_(source)


class Pair:
    """Forward and backward recordings of one function for one set of shapes."""

    def __init__(
        self,
        function: Callable[..., Tensors],
        static_inputs: Tensors,
        parameters: Tensors,
        allow_unused_input: bool,
    ) -> None:
        self.inputs = static_inputs
        self.parameters = parameters
        self._forward, self.outputs = recorded(lambda: function(*static_inputs))
        self._wanting = [
            i for i, t in enumerate((*static_inputs, *parameters)) if t.requires_grad
        ]
        self._grown = [o for o in self.outputs if o.requires_grad]
        self.grad_outputs = tuple(torch.zeros_like(o) for o in self._grown)
        self._backward: Recording | None = None
        self._grads: tuple[Tensor | None, ...] = ()
        if self._grown and self._wanting:
            surface = (*static_inputs, *parameters)
            self._backward, self._grads = recorded(
                lambda: torch.autograd.grad(
                    self._grown,
                    [surface[i] for i in self._wanting],
                    self.grad_outputs,
                    allow_unused=allow_unused_input,
                )
            )

    def forward(self, given: Tensors) -> Tensors:
        """The outputs for `given`; the same memory at every call."""
        fill(self.inputs, given)
        replay(self._forward)
        return tuple(o.detach() for o in self.outputs)

    def backward(self, gradients: Sequence[Tensor | None]) -> list[Tensor | None]:
        """The gradients of all inputs and parameters, in that order."""
        found: list[Tensor | None] = [None] * (len(self.inputs) + len(self.parameters))
        if self._backward is None:
            return found
        wanted = [
            torch.zeros_like(o) if g is None else g
            for o, g in zip(self.outputs, gradients)
            if o.requires_grad
        ]
        fill(self.grad_outputs, wanted)
        replay(self._backward)
        for where, grad in zip(self._wanting, self._grads):
            # A copy: the next replay must not change a gradient that is kept.
            found[where] = None if grad is None else grad.clone()
        return found

    def __call__(self, *given: Tensor) -> Tensors:
        """The function, differentiable."""
        made = _Replayed.apply(self, len(given), *given, *self.parameters)
        result: Tensors = made if isinstance(made, tuple) else (made,)
        return result


class _Replayed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, pair: Pair, count: int, *tensors: Tensor) -> Tensors:
        ctx.pair = pair
        outputs = pair.forward(tensors[:count])
        pairs = zip(outputs, pair.outputs)
        ctx.mark_non_differentiable(*(o for o, s in pairs if not s.requires_grad))
        return outputs

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> Any:
        return (None, None, *ctx.pair.backward(gradients))


def _check(function: Any, sample: Any) -> None:
    if isinstance(function, nn.Module):
        if has_hooks(function):
            raise AssertionError(
                "Modules must not have hooks registered at the time they are passed."
            )
        if any(b.requires_grad for b in function.buffers()):
            raise AssertionError(
                "only parameters may be trainable: buffers need requires_grad=False"
            )
    if not all(isinstance(a, Tensor) for a in sample):
        raise AssertionError("sample_args must be a tuple of tensors for each callable")


def _graphed(
    function: Any, sample: Tensors, warmups: int, allow_unused_input: bool
) -> Any:
    single: list[bool] = []

    def call(*args: Tensor) -> Tensors:
        outputs = function(*args)
        single.append(isinstance(outputs, Tensor))
        return (outputs,) if single[-1] else tuple(outputs)

    for _ in range(warmups):
        call(*sample)
    parameters: Tensors = ()
    if isinstance(function, nn.Module):
        parameters = tuple(function.parameters())
    pair = Pair(call, sample, parameters, allow_unused_input)

    def run(*args: Tensor) -> Any:
        outputs = pair(*args)
        return outputs[0] if single[-1] else outputs

    if not isinstance(function, nn.Module):
        return run
    original, training = function.forward, function.training

    def forward(*args: Any, **kwargs: Any) -> Any:
        # A recording holds one mode of dropout and normalization.
        if function.training == training and not kwargs:
            return run(*args)
        return original(*args, **kwargs)

    function.forward = forward
    return function


def make_graphed_callables(
    callables: Any,
    sample_args: Any,
    warmups: int = 0,
    allow_unused_input: bool = False,
    asynchronous: bool = False,
    disable_tensor_cache: bool = False,
    dry_run: bool = False,
) -> Any:
    """Callables that replay recordings made with `sample_args`, their static inputs.

    One callable with a tuple of tensors, or tuples of both. Modules must have neither
    hooks nor trainable buffers (AssertionError) and are returned themselves.
    """
    just_one = not isinstance(callables, tuple)
    if just_one:
        callables, sample_args = (callables,), (sample_args,)
    for function, sample in paired(callables, sample_args):
        _check(function, sample)
    sync("graph capture")
    made = tuple(
        _graphed(function, tuple(sample), warmups, allow_unused_input)
        for function, sample in paired(callables, sample_args)
    )
    return made[0] if just_one else made
