"""Samples of packages on MMCV 1.x as batches: the one place that knows DataContainer.

A `DataContainer` says how its values become a batch: stacked and padded, or kept as a
list. MMCV unwraps it when a batch is scattered to devices. One process of devrun has
one device, so the whole batch is one chunk and its parts are unwrapped at once: models
and adapters see tensors, lists and dicts only.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from importlib import import_module
from typing import Any


def collate(samples: list[Any]) -> Any:
    """A batch by MMCV's own `collate`, without its containers."""
    parallel: Any = import_module("mmcv.parallel")
    return unwrapped(parallel.collate(samples, samples_per_gpu=len(samples)))


def unwrapped(batch: Any) -> Any:
    """`batch` with the only chunk of each `DataContainer` in the place of it."""
    if isinstance(batch, Mapping):
        return {key: unwrapped(value) for key, value in batch.items()}
    if type(batch) in (list, tuple):
        return type(batch)(map(unwrapped, batch))
    if type(batch).__name__ == "DataContainer":
        return batch.data[0]
    return batch


def ignore_others(dataset: Any) -> None:
    """Have MMSegmentation's sets mark classes that `classes` leaves out by 255.

    They write -1 into images of bytes, which numpy 1 took for 255 and numpy 2 refuses.
    """
    inner = getattr(dataset, "dataset", None)
    for part in getattr(dataset, "datasets", [inner]):
        if part is not None:
            ignore_others(part)
    label_map = getattr(dataset, "label_map", None)
    if type(dataset).__module__.startswith("mmseg.") and label_map:
        label_map.update({old: 255 for old, new in label_map.items() if new == -1})


def packed_masks(dataset: Any) -> None:
    """Have `evaluate` of MMDetection's sets get masks as run lengths, which their test
    loop makes of them."""
    kind: Any = type(dataset)
    if kind.__module__.startswith("mmdet.") and hasattr(kind, "evaluate"):
        dataset.evaluate = partial(_evaluate_packed, kind.evaluate, dataset)


def _evaluate_packed(evaluate: Any, dataset: Any, results: Any, **options: Any) -> Any:
    if results and isinstance(results[0], tuple):
        encode = import_module("mmdet.core").encode_mask_results
        results = [(boxes, encode(masks)) for boxes, masks in results]
    return evaluate(dataset, results, **options)
