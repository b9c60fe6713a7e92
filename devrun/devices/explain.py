"""Failures of a step, explained for users where torch's text is for developers."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from devrun.data.batch import batch_size_of
from devrun.errors import (
    ConfigError,
    DeviceMemoryError,
    DevrunError,
    is_out_of_memory,
)
from devrun.step import MicroBatches
from devrun.tensors import named_tensors

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
    if is_out_of_memory(error):
        return DeviceMemoryError(_memory_line(error, batch, device, stats()))
    text = str(error)
    if match := _TARGET.search(text):
        return ConfigError(_label_line(int(match[1]), batch))
    if isinstance(error, IndexError) and "index out of range in self" in text:
        return ConfigError(_index_line(batch, model))
    if "more than 1 value per channel when training" in text:
        return ConfigError(
            "a norm layer of the model has no statistics for a batch of one sample, "
            "mostly the last batch of an epoch: set drop_last: true in "
            "data.train_dataloader, or another samples_per_gpu"
        )
    if "device-side assert" in text:
        return ConfigError(
            f"an index was out of range on {device}, most often a label outside the "
            "number of classes: run the same config with --device cpu, which names it"
        )
    if "Expected to have finished reduction in the prior iteration" in text:
        return ConfigError(
            "some parameters took no part in the loss of an update, so their "
            "gradients cannot be averaged over the processes: freeze them, use them, "
            "or set parallel: {find_unused_parameters: true}"
        )
    return None


def _memory_line(
    error: BaseException, batch: Any, device: str, stats: Mapping[str, float]
) -> str:
    size = batch_size_of(batch)
    parts = [f"out of memory on {device} with {size} samples an update"]
    if isinstance(batch, MicroBatches):
        parts.append(f"in {len(batch)} micro-batches")
    if wanted := re.search(r"tried to allocate ([\d.]+) ?(\w+)", str(error), re.I):
        parts.append(f"(one allocation of {wanted[1]} {wanted[2]} failed)")
    if peak := stats.get("peak_mib"):
        parts.append(f"at a peak of {peak:.0f} MiB")
    return (
        " ".join(parts) + ": take a smaller batch size, raise cumulative_iters to keep "
        "the effective one, or set precision to bf16"
    )


def _label_line(label: int, batch: Any) -> str:
    place = ""
    for position, name, tensor in _integers(batch):
        hits = (tensor == label).nonzero()
        if len(hits) and tensor.dim():
            place = f" of sample {position + int(hits[0][0])} of the batch ({name})"
            break
    return (
        f"label {label}{place} is out of range: labels must be 0 to the number of "
        "classes minus 1; check num_classes of the model and the labels of the data"
    )


def _index_line(batch: Any, model: nn.Module) -> str:
    rows = [m.num_embeddings for m in model.modules() if isinstance(m, nn.Embedding)]
    known = f"its embeddings have {', '.join(map(str, rows))} rows" if rows else ""
    for position, name, tensor in _integers(batch):
        bad = (tensor < 0) | (tensor >= min(rows)) if rows else tensor < 0
        hits = bad.nonzero()
        if len(hits) and tensor.dim():
            value = int(tensor[tuple(hits[0])])
            return (
                f"index {value} of sample {position + int(hits[0][0])} of the batch "
                f"({name}) is out of range for an embedding of the model; {known}"
            )
    return f"an index is out of range for an embedding of the model; {known}".rstrip(
        "; "
    )


def _integers(batch: Any, position: int = 0) -> Iterator[tuple[int, str, Tensor]]:
    """(first sample, name, tensor) of each integer tensor of a batch, labels first."""
    if isinstance(batch, MicroBatches):
        for part in batch:
            yield from _integers(part, position)
            position += batch_size_of(part)
        return
    found = [
        (position, name, tensor)
        for name, tensor in named_tensors(batch, "batch")
        if not (tensor.is_floating_point() or tensor.is_complex())
        and tensor.dtype != torch.bool
    ]
    # targets come last in (input, target); inputs of a language model look alike
    yield from reversed(found)
