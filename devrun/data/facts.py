"""What a data set and the loader over it are, in a few words that can be compared."""

from __future__ import annotations

import hashlib
from typing import Any

import torch
from torch.utils.data import Subset, TensorDataset

_LOOKED_AT = 256
"""Samples whose records go into the fingerprint, spread over the data set."""


def data_facts(loader: Any) -> dict[str, Any]:
    """Class, size and fingerprint of the data of a prepared `loader`.

    Empty where devrun does not divide the data over the processes itself: with a
    sampler of the user's own, or an iterable data set, each may have data of its own.
    """
    size = loader.samples_per_update
    if size is None:
        return {}
    dataset = loader.dataset
    return {
        "class": type(dataset).__name__,
        "samples": len(dataset),
        "samples per update": size,
        "content": _fingerprint(dataset),
    }


def _fingerprint(dataset: Any) -> str | None:
    """Of what a data set keeps in memory: its tensors, or its `targets`.

    No sample is read: one that opens its files at the first would then share them
    with its workers.
    """
    step = max(len(dataset) // _LOOKED_AT, 1)
    positions = [*range(0, len(dataset), step), len(dataset) - 1]
    while type(dataset) is Subset:
        positions = [dataset.indices[position] for position in positions]
        dataset = dataset.dataset
    kept: Any = [getattr(dataset, "targets", None)]
    if isinstance(dataset, TensorDataset):
        kept = dataset.tensors
    hashed = hashlib.sha256()
    try:
        for column in kept:
            rows = [torch.as_tensor(column[position]) for position in positions]
            hashed.update(repr([row.tolist() for row in rows]).encode())
    except (TypeError, ValueError, IndexError, KeyError, RuntimeError):
        return None  # of another kind, such as boxes
    return hashed.hexdigest()[:8]
