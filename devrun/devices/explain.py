"""Failures of a step, explained for users where torch's text is for developers."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from devrun.errors import (
    ConfigError,
    DeviceMemoryError,
    DevrunError,
    is_out_of_memory,
)
from devrun.step import MicroBatches
from devrun.tensors import batch_size_of, named_tensors

STEP_FAILURES = (RuntimeError, IndexError, MemoryError, ValueError)
"""What a step can raise that `explain` may know."""

_TARGET = re.compile(r"Target (-?\d+) is out of bounds")


def raise_explained(error: BaseException, batch: Any, model: Any, adapter: Any) -> None:
    """Raise the one line for the user, if there is one; else the caller's to raise."""
    line = explain(error, batch, model, str(adapter.device), adapter.stats)
    if line is not None:
        raise line from error


def explain(
    error: BaseException,
    batch: Any,
    model: nn.Module,
    device: str,
    stats: Callable[[], Mapping[str, float]],
) -> DevrunError | None:
    """One line for the user, or None when the error needs no explanation."""
    if isinstance(error, DevrunError):
        return None
    inner = getattr(error, "inner_exception", None)  # of a compiler
    if isinstance(inner, DevrunError):
        return inner
    if is_out_of_memory(error):
        return DeviceMemoryError(_memory_line(error, batch, model, device, stats()))
    text = str(error)
    if match := _TARGET.search(text):
        label = int(match[1])
        place = _first(batch, lambda tensor: tensor == label)
        return ConfigError(
            f"label{place or f' {label}'} is out of range: labels must be 0 to the "
            "number of classes minus 1; check num_classes of the model and the labels "
            "of the data"
        )
    if isinstance(error, IndexError) and "index out of range in self" in text:
        tables = [m for m in model.modules() if isinstance(m, nn.Embedding)]
        rows = [table.num_embeddings for table in tables]
        least = min(rows, default=sys.maxsize)
        place = _first(batch, lambda tensor: (tensor < 0) | (tensor >= least))
        known = f"; its embeddings have {', '.join(map(str, rows))} rows" * bool(rows)
        return ConfigError(
            f"index{place} is out of range for an embedding of the model{known}"
        )
    known_line = next((told for said, told in _KNOWN.items() if said in text), None)
    if known_line is None:
        return None
    key = "optimizer" if _SPARSE in text or _DENSE in text else None
    return ConfigError(known_line.format(device=device), key=key)


_SPARSE = "does not support sparse gradients"
_DENSE = "does not support dense gradients"
_KNOWN = {
    _SPARSE: (
        "the optimizer takes no sparse gradients, as an embedding with sparse=True "
        "gives: take SGD or SparseAdam, or sparse=False"
    ),
    _DENSE: (
        "the optimizer takes sparse gradients alone, which only an embedding with "
        "sparse=True gives, on a device that has sparse tensors: take Adam"
    ),
    "more than 1 value per channel when training": (
        "a norm layer of the model has no statistics for a batch of one sample, "
        "mostly the last batch of an epoch: set drop_last: true in "
        "data.train_dataloader, or another samples_per_gpu"
    ),
    "device-side assert": (
        "an index was out of range on {device}, most often a label outside the "
        "number of classes: run the same config with --device cpu, which names it"
    ),
    "Expected to have finished reduction in the prior iteration": (
        "some parameters took no part in the loss of an update, so their "
        "gradients cannot be averaged over the processes: freeze them, use them, "
        "or set parallel: {{find_unused_parameters: true}}"
    ),
}
"""A part of torch's text -> the line for the user."""


def _memory_line(
    error: BaseException,
    batch: Any,
    model: nn.Module,
    device: str,
    stats: Mapping[str, float],
) -> str:
    size = batch_size_of(batch)
    of_what = "an update" if model.training else "in a batch of the evaluation"
    parts = [f"out of memory on {device} with {size} samples {of_what}"]
    if isinstance(batch, MicroBatches):
        parts.append(f"in {len(batch)} micro-batches")
    if wanted := re.search(r"tried to allocate ([\d.]+) ?(\w+)", str(error), re.I):
        parts.append(f"(one allocation of {wanted[1]} {wanted[2]} failed)")
    if peak := stats.get("peak_mib"):
        parts.append(f"at a peak of {peak:.0f} MiB")
    remedy = "a smaller data.val_dataloader.samples_per_gpu"
    if model.training:
        remedy = (
            "a smaller batch size, raise cumulative_iters to keep the effective one"
        )
    return f"{' '.join(parts)}: take {remedy}, or set precision to bf16"


def _first(batch: Any, wrong: Callable[[Tensor], Tensor], position: int = 0) -> str:
    """Where the first value is that is `wrong`, such as ` 7 of sample 3 of ...`."""
    if isinstance(batch, MicroBatches):
        for part in batch:
            if place := _first(part, wrong, position):
                return place
            position += batch_size_of(part)
        return ""
    # targets come last in (input, target); inputs of a language model look alike
    for name, tensor in reversed(list(named_tensors(batch, "batch"))):
        if tensor.is_floating_point() or tensor.is_complex() or not tensor.dim():
            continue
        if tensor.dtype != torch.bool and len(hits := wrong(tensor).nonzero()):
            value, sample = int(tensor[tuple(hits[0])]), position + int(hits[0][0])
            return f" {value} of sample {sample} of the batch ({name})"
    return ""
