"""Loops, branches, groups of convolutions and custom operations."""

# ruff: noqa: N802 - PopTorch's names
from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Callable

import torch

from poptorch import _capture, enums
from poptorch._errors import Error
from poptorch._options_base import check
from poptorch._tape import Env, Tape
from poptorch._torch_private import DisableTorchFunction, pytree

Body = Callable[..., Any]


def _check_inputs(inputs: Any) -> list[torch.Tensor]:
    if not isinstance(inputs, list):
        raise ValueError("(Object is not list) The inputs must be a list of tensors.")
    for index, value in enumerate(inputs):
        if not isinstance(value, torch.Tensor):
            raise ValueError(
                f"(Object contained in list at index {index} is not torch.tensor) The "
                "inputs must be a list of tensors."
            )
    return inputs


def _listed(result: Any) -> list[Any]:
    return list(result) if isinstance(result, (tuple, list)) else [result]


def _run_loop(
    env: Env, train: bool, bodies: tuple[Tape, ...], count: int, inputs: list[Any]
) -> list[Any]:
    values = [value.clone() for value in inputs]
    for _ in range(count):
        values = bodies[0].call(env, train, values)
    return [value.clone() for value in values]


def for_loop(count: int, body: Body, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
    """Apply `body` to the inputs `count` times; it returns as many tensors.

    Raises:
        ValueError: Inputs that are no list of tensors.
        Error: A training model, or other outputs than inputs.
    """
    _check_inputs(inputs)
    check(isinstance(count, int), "The count of a for_loop must be an integer")
    recorder = _capture.current()
    if recorder is None:
        values = [value.clone() for value in inputs]
        for _ in range(count):
            values = _listed(body(*values))
        return values
    if recorder.training:
        raise Error("poptorch.for_loop() is only supported in inference.")
    tape, outputs = recorder.body(body, inputs)
    if len(outputs) != len(inputs):
        raise Error(
            f"The body of a for_loop must return as many tensors as it takes: "
            f"{len(inputs)}, not {len(outputs)}"
        )
    return _recorded(
        recorder, _run_loop, "for_loop", (count, inputs), (tape,), outputs, inputs
    )


def _recorded(
    recorder: Any,
    function: Callable[..., Any],
    name: str,
    args: tuple[Any, ...],
    bodies: tuple[Tape, ...],
    outputs: Sequence[torch.Tensor],
    inputs: Sequence[torch.Tensor],
) -> list[torch.Tensor]:
    with DisableTorchFunction():
        like = [recorder.stand_in(output) for output in outputs]
        given = pytree.tree_map(
            lambda v: recorder.stand_in(v) if isinstance(v, torch.Tensor) else v, args
        )
        result: list[torch.Tensor] = recorder.record(
            function,
            name,
            given,
            {},
            bodies=bodies,
            example=lambda: [torch.empty(t.shape, dtype=t.dtype) for t in like],
        )
    return result


def _run_branch(
    env: Env,
    train: bool,
    bodies: tuple[Tape, ...],
    condition: torch.Tensor,
    then_inputs: list[Any],
    else_inputs: list[Any],
) -> list[Any]:
    chosen = bool(condition)
    inputs = then_inputs if chosen else else_inputs
    values = [value.clone() for value in inputs]
    return [v.clone() for v in bodies[0 if chosen else 1].call(env, train, values)]


def cond(
    condition: torch.Tensor,
    then_body: Body,
    then_inputs: list[torch.Tensor],
    else_body: Body,
    else_inputs: list[torch.Tensor],
) -> list[torch.Tensor]:
    """The outputs of one of two bodies, chosen when the graph runs.

    Raises:
        ValueError: Inputs that are no lists of tensors.
        Error: A training model, or branches that return different numbers of tensors.
    """
    _check_inputs(then_inputs)
    _check_inputs(else_inputs)
    recorder = _capture.current()
    if recorder is None:
        body, given = (
            (then_body, then_inputs) if bool(condition) else (else_body, else_inputs)
        )
        return _listed(body(*(value.clone() for value in given)))
    if recorder.training:
        raise Error("poptorch.cond() is only supported in inference.")
    then_tape, then_out = recorder.body(then_body, then_inputs)
    else_tape, else_out = recorder.body(else_body, else_inputs)
    if len(then_out) != len(else_out):
        raise Error(
            f"Both branches of cond must return as many tensors: {len(then_out)} and "
            f"{len(else_out)}"
        )
    return _recorded(
        recorder,
        _run_branch,
        "cond",
        (condition, then_inputs, else_inputs),
        (then_tape, else_tape),
        then_out,
        then_inputs,
    )


class MultiConv:
    """`with MultiConv():` plans the convolutions inside together."""

    _open = False

    def __init__(self) -> None:
        self._settings: dict[str, Any] = {}
        self._seen = 0

    def _set(
        self, name: str, what: str, value: Any, kind: Callable[[Any], bool]
    ) -> MultiConv:
        values = value if isinstance(value, (tuple, list)) else (value,)
        if not values or not all(kind(v) for v in values):
            raise ValueError(f"Invalid {what}: {value!r}")
        self._settings[name] = value
        return self

    def availableMemoryProportions(self, value: Any) -> MultiConv:
        """Shares of memory, one for all or one each."""
        return self._set(
            "availableMemoryProportions", "memory proportions", value, _is_share
        )

    def partialsTypes(self, value: Any) -> MultiConv:
        """`torch.float` or `torch.half`, one for all or one each."""
        kinds = (torch.float, torch.half)
        return self._set("partialsTypes", "partials types", value, kinds.__contains__)

    def planType(self, value: enums.MultiConvPlanType) -> MultiConv:
        """Parallel or serial."""
        known = isinstance(value, enums.MultiConvPlanType)
        check(known, f"Invalid plan type: {value!r}")
        self._settings["planType"] = value
        return self

    def perConvReservedTiles(self, value: int) -> MultiConv:
        """Tiles reserved for each convolution."""
        check(isinstance(value, int), "perConvReservedTiles takes an integer")
        self._settings["perConvReservedTiles"] = value
        return self

    def cycleBackOff(self, value: float) -> MultiConv:
        """Share of cycles to give up for a smaller plan."""
        return self._set("cycleBackOff", "cycle back off", value, _is_share)

    def enableConvDithering(self, value: Any) -> MultiConv:
        """Start plans on different tiles."""
        return self._set(
            "enableConvDithering", "dithering", value, lambda v: isinstance(v, bool)
        )

    def __enter__(self) -> MultiConv:
        recorder = _capture.current()
        if recorder is not None:
            if MultiConv._open:
                raise Error("Nested poptorch.MultiConv is not supported.")
            MultiConv._open = True
            self._seen = len(recorder.tape.nodes)
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        recorder = _capture.current()
        if recorder is None:
            return
        MultiConv._open = False
        if kind is None and not any(
            node.name.startswith("conv") for node in recorder.tape.nodes[self._seen :]
        ):
            raise Error(
                "Unexpected end_multi_conv: a poptorch.MultiConv must contain at least "
                "one convolution"
            )


def _is_share(value: Any) -> bool:
    return isinstance(value, (int, float)) and 0 < value <= 1


_fallbacks: dict[tuple[str, str], Callable[..., Any]] = {}


def register_custom_op(name: str, domain: str, function: Callable[..., Any]) -> None:
    """Have `function(*inputs, **attributes)` stand in for a custom operation.

    It returns a tensor or a list of tensors, by differentiable torch functions.
    """
    _fallbacks[name, domain] = function


def custom_op(
    inputs: Sequence[torch.Tensor],
    name: str,
    domain: str,
    domain_version: int,
    example_outputs: Sequence[torch.Tensor],
    attributes: dict[str, Any] | None = None,
) -> list[torch.Tensor]:
    """A custom PopART operation: compiled for IPUs, so the emulator needs a stand-in.

    Raises:
        Error: None was given with `poptorch.emulation.register_custom_op`.
        ValueError: An attribute of a type that PopART has not.
    """
    for key, value in (attributes or {}).items():
        _check_attribute(key, value)
    function = _fallbacks.get((name, domain))
    if function is None:
        raise Error(
            f"Custom operation {name} (domain {domain}, version {domain_version}) is "
            "code for IPUs, which the emulator can't run. Give it a function with "
            "poptorch.emulation.register_custom_op(name, domain, function)."
        )
    return _listed(function(*inputs, **(attributes or {})))


def _check_attribute(key: str, value: Any) -> None:
    values = value if isinstance(value, (list, tuple)) else [value]
    if not values:
        raise ValueError(f"Attribute {key} is empty: its type is not known")
    kinds = {type(v) for v in values}
    if len(kinds) > 1 or not kinds <= {int, float, str}:
        raise ValueError(
            f"Attribute {key} must be an int, float or str, or a list of one of them"
        )
    for text in (key, *(v for v in values if isinstance(v, str))):
        if not text.isascii():
            raise ValueError(f"Attribute {key}: {text!r} is not ASCII")
