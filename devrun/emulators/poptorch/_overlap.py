"""Overlapped transfers of inputs and outputs: recorded as identities, and checked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import torch
from torch.overrides import handle_torch_function

from poptorch import _capture, enums
from poptorch._errors import Error
from poptorch._options_base import check
from poptorch._tape import Tape

T = TypeVar("T")


def _overlapped_input(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.view_as(tensor)


def _overlapped_output(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.view_as(tensor)


def _marked(value: Any, mode: enums.OverlapMode, name: str, function: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return type(value)(_marked(v, mode, name, function) for v in value)
    if isinstance(value, dict):
        return {key: _marked(v, mode, name, function) for key, v in value.items()}
    if not isinstance(value, torch.Tensor):
        raise Error(f"{name} needs a tensor, not {type(value).__name__}")
    check(isinstance(mode, enums.OverlapMode), f"{name} takes an OverlapMode: {mode!r}")
    if _capture.current() is None or mode == enums.OverlapMode.NoOverlap:
        return value
    return handle_torch_function(function, (value,), value)


def set_overlap_for_input(input_tensors: T, mode: enums.OverlapMode) -> T:
    """Overlap the transfer of inputs with computation. Without effect on values.

    Raises:
        Error: At compilation: no input of the model, or one that something else reads
            too; a pipelined strategy; no tiles for input and output.
    """
    name = "set_overlap_for_input"
    return _marked(input_tensors, mode, name, _overlapped_input)  # type: ignore[no-any-return]


def set_overlap_for_output(output_tensors: T, mode: enums.OverlapMode) -> T:
    """Overlap the transfer of outputs with computation. Without effect on values.

    Raises:
        Error: At compilation: no output of the model, or one that is returned twice; a
            pipelined strategy; no tiles for input and output.
    """
    name = "set_overlap_for_output"
    return _marked(output_tensors, mode, name, _overlapped_output)  # type: ignore[no-any-return]


def check_overlaps(
    tape: Tape, inputs: Sequence[int], outputs: Sequence[int], options: Any
) -> None:
    """Refuse what the device cannot overlap; `inputs` and `outputs` are slots."""
    marked = [n for n in tape.nodes if n.name.startswith("_overlapped")]
    for node in marked:
        (read,), ((_, written),) = node.reads, node.writes
        if node.function is _overlapped_input:
            _check_input(tape, read, inputs)
        else:
            _check_output(read, written, outputs)
    if not marked:
        return
    if options._execution_strategy.pipelined:
        raise Error(
            "Overlapped IO is not supported with poptorch.PipelinedExecution. If you "
            "are using only one IPU, please switch to poptorch.ShardedExecution."
        )
    if not options.TensorLocations.exists("numIOTiles"):
        raise Error(
            "No IO tiles allocated. You must allocate at least 32 IO tiles using "
            "poptorch.Options().TensorLocations.numIOTiles."
        )


def _check_input(tape: Tape, slot: int, inputs: Sequence[int]) -> None:
    if slot not in inputs:
        raise Error(
            "poptorch.set_overlap_for_input applied on a node which is not a tensor "
            "input to the model."
        )
    if sum(slot in node.reads for node in tape.nodes) > 1:
        raise Error(
            "poptorch.set_overlap_for_input must be the only op applied to an input. "
            f"This is not the case for input {inputs.index(slot)} to the model."
        )


def _check_output(read: int, written: int, outputs: Sequence[int]) -> None:
    if read in outputs or outputs.count(written) > 1:
        raise Error(
            "poptorch.set_overlap_for_output cannot be used with a tensor that is "
            "returned twice. Please check all returned tensors including those nested "
            "in tuples/lists."
        )
    if written not in outputs:
        raise Error(
            "poptorch.set_overlap_for_output applied on a node which is not a tensor "
            "output to the model."
        )
