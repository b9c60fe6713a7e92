"""Models and samples of packages on MMCV 1.x.

A `DataContainer` says how its values become a batch: stacked and padded, or kept as a
list. MMCV unwraps it when a batch is scattered to devices. One process of devrun has
one device, so the whole batch is one chunk and its parts are unwrapped at once: models
and adapters see tensors, lists and dicts only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from importlib import import_module
from typing import Any

import torch
from torch.nn import functional

from devrun.blame import cause_of
from devrun.errors import ConfigError
from devrun.interop.packages import SCOPES


def keep_values_on_device(name: str) -> None:
    """Have losses of the package `name` work without reading values on the host.

    That waits for a device, and a compiled graph cannot do it. MMClassification's
    one-hot targets compare the largest index there; torch's `one_hot` refuses such an
    index on its own. MMSegmentation's accuracy takes the pixels that count into
    tensors whose size depends on them.
    """
    if name == "mmcls":
        for module in ("label_smooth_loss", "focal_loss", "asymmetric_loss"):
            loss: Any = import_module(f"mmcls.models.losses.{module}")
            loss.convert_to_one_hot = _one_hot
    elif name == "mmseg":
        for module in ("decode_head", "point_head"):
            head: Any = import_module(f"mmseg.models.decode_heads.{module}")
            head.accuracy = partial(_accuracy, head.accuracy)


def _one_hot(targets: torch.Tensor, classes: int) -> torch.Tensor:
    """(N, 1) indices as (N, classes)."""
    return functional.one_hot(targets.long().squeeze(-1), classes)


def _accuracy(
    accuracy: Callable[..., Any],
    pred: torch.Tensor,
    target: torch.Tensor,
    topk: Any = 1,
    thresh: float | None = None,
    ignore_index: int | None = None,
) -> Any:
    """`accuracy` over all pixels, of which the ignored are wrong, as that of the rest.

    Args:
        pred: (N, C, ...) scores.
        target: (N, ...) classes.
    """
    if ignore_index is None:
        return accuracy(pred, target, topk, thresh)
    counted = target != ignore_index
    found = accuracy(pred, target.where(counted, -1), topk, thresh)
    eps = torch.finfo(torch.float32).eps  # theirs, against no pixels at all
    share = (target.numel() + eps) / (counted.sum() + eps)
    several = isinstance(found, list)
    return [value * share for value in found] if several else found * share


def offer_augments(model: Any) -> None:
    """Let a device that compiles its steps take mixup and cutmix out of the model.

    They draw from Python's and numpy's streams and choose by what they drew, which a
    compiled graph would do once and keep. They see the whole batch of an update.
    """
    if type(getattr(model, "augments", None)).__module__.startswith("mmcls."):
        vars(model)["take_batch_transform"] = partial(_take_augments, model)


def _take_augments(model: Any) -> Any:
    """The model's own, which it no longer has."""
    augments, model.augments = model.augments, None
    return partial(_augmented, augments)


def _augmented(augments: Any, batch: Any) -> Any:
    img, label = augments(batch["img"], batch["gt_label"])
    return {**batch, "img": img, "gt_label": label}


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


def explain_evaluate(dataset: Any) -> None:
    """Have what `evaluate` of the data set refuses of a config said in one line.

    MMDetection's gets masks as run lengths, which its test loop makes of them.
    """
    if callable(getattr(type(dataset), "evaluate", None)):
        dataset.evaluate = partial(_evaluate, dataset)


def _evaluate(dataset: Any, results: Any, **options: Any) -> Any:
    kind: Any = type(dataset)
    if kind.__module__.startswith("mmdet.") and results:
        if isinstance(results[0], tuple):
            encode = import_module("mmdet.core").encode_mask_results
            results = [(boxes, encode(masks)) for boxes, masks in results]
    try:
        return kind.evaluate(dataset, results, **options)
    except (AssertionError, KeyError, TypeError, ValueError) as error:
        if kind.__module__.partition(".")[0] not in SCOPES:
            raise  # the user's own code, whose traceback tells more
        given = [name for name in options if name != "logger"]
        raise ConfigError(
            f"evaluate of {kind.__name__} failed: {cause_of(error)}; the evaluation "
            f"gives it {', '.join(given) or 'no arguments'}"
        ) from error
