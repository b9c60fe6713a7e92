"""A package on MMCV 1.x as a scope: its registries, built by their own code."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from importlib import import_module
from typing import Any

import torch
from torch.nn import functional

from devrun.blame import cause_of
from devrun.construct import Buildable, call, check_call
from devrun.errors import ConfigError
from devrun.interop.openmmlab import hooks
from devrun.interop.packages import (
    SCOPES,
    built_by,
    imported,
    in_dicts,
    mend_numpy,
    read_weights_here,
    stand_in,
)
from devrun.registry import HOOKS, OPTIMIZER_BUILDERS, RUNNER_BUILDERS, RUNNERS

_MODULES = {
    "mmcv": ("mmcv.cnn", "mmcv.runner"),
    "mmcls": ("mmcls.models", "mmcls.datasets", "mmcls.core"),
    "mmseg": ("mmseg.models", "mmseg.datasets", "mmseg.core"),
    "mmdet": ("mmdet.models", "mmdet.datasets", "mmdet.core"),
}
"""What is imported so that the registries are full."""
_SHARED = {
    "model": "mmcv.cnn:MODELS",
    "optimizer": "mmcv.runner:OPTIMIZERS",
    "optimizer constructor": "mmcv.runner.optimizer:OPTIMIZER_BUILDERS",
    "hook": "mmcv.runner:HOOKS",
}
_WITHOUT_OPERATORS = ("mmcv", "mmcls")
_REGISTRIES = {
    "mmcv": _SHARED,
    **{
        name: {
            **_SHARED,
            "model": f"{name}.models.builder:MODELS",
            "loss": f"{name}.models.builder:MODELS",
            "dataset": f"{name}.datasets.builder:DATASETS",
            "transform": f"{name}.datasets.builder:PIPELINES",
        }
        for name in ("mmcls", "mmseg", "mmdet")
    },
}
_REGISTRIES["mmcls"]["sampler"] = "mmcls.datasets.builder:SAMPLERS"
for _name, _home in (("mmseg", "core.builder"), ("mmdet", "core.optimizers.builder")):
    _own = f"{_name}.{_home}:OPTIMIZER_BUILDERS"
    _REGISTRIES[_name]["optimizer constructor"] = _own
"""Scope -> registry of devrun's -> module and name of theirs."""

_NESTED = ("model", "loss", "dataset", "transform")
"""Registries whose sections have parts with a `type` of their own."""
_OURS = {
    registry.name: registry
    for registry in (HOOKS, RUNNERS, RUNNER_BUILDERS, OPTIMIZER_BUILDERS)
}
"""The runner is devrun's, so what works on it is too, where devrun has that name."""

_KINDS = {"models": "model", "pipeline": "transform", "dataset": "dataset"}
"""Group of a registry of theirs -> kind of ours."""


class MmcvScope:
    """The registries of a package on MMCV 1.x."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._registries: dict[str, Any] = {
            kind: _named(path) for kind, path in _REGISTRIES[name].items()
        }

    def find(self, kind: str, name: str) -> Buildable | None:
        if kind == "hook":
            return hooks.find(name, self._theirs(kind, name))
        own = _OURS[kind].get(name) if kind in _OURS else None
        return own or self._theirs(kind, name)

    def names(self, kind: str) -> Iterable[str]:
        if kind == "hook":
            return sorted(hooks.OWN)
        return sorted(getattr(self._registries.get(kind), "module_dict", ()))

    def build(
        self,
        kind: str,
        name: str,
        target: Buildable,
        args: dict[str, Any],
        cfg: Mapping[str, Any],
    ) -> Any:
        """By their `build`, so that parts are made by their code from their names.

        Raises:
            ConfigError: in one line, with the place of the part that is wrong.
        """
        if kind not in _NESTED:
            return call(target, args, cfg)
        check_call(target, args, cfg)
        section = in_dicts(import_module("mmcv").ConfigDict, {"type": name, **args})
        make = partial(self._builder(kind), section)
        made = built_by(make, name, args, cfg, self.name, partial(self._known, kind))
        if kind == "dataset":
            ignore_others(made)
            explain_evaluate(made)
            if not hasattr(made, "collate_fn"):
                made.collate_fn = collate
        elif kind == "model":
            offer_augments(made)
        return made

    def _theirs(self, kind: str, name: str) -> Buildable | None:
        registry = self._registries.get(kind)
        return None if registry is None else registry.get(name)

    def _known(self, kind: str, group: str) -> Iterable[str]:
        registry = self._registries.get(_KINDS.get(group, kind))
        return () if registry is None else registry.module_dict

    def _builder(self, kind: str) -> Callable[[Any], Any]:
        build: Callable[[Any], Any] = self._registries[kind].build
        if kind == "dataset" and self.name != "mmcv":
            build = _named(f"{self.name}.datasets.builder:build_dataset")
        return build


def attach(name: str) -> MmcvScope:
    """The scope of the package `name`, imported.

    Raises:
        ConfigError: importing it fails.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of packages that are no longer maintained
        imported(name, "openmmlab", "mmcv")
        if name not in _WITHOUT_OPERATORS:
            stand_in()
        imported(name, "openmmlab", *_MODULES[name])
        read_weights_here(import_module("mmcv.runner").CheckpointLoader)
        mend_numpy(name)
        keep_values_on_device(name)
    logging.getLogger("mmcv").setLevel(logging.WARNING)
    return MmcvScope(name)


def _named(path: str) -> Any:
    module, _, name = path.partition(":")
    return getattr(import_module(module), name)


# Models and samples ----------------------------------------------------------
# A `DataContainer` says how its values become a batch: stacked and padded, or kept as a
# list. MMCV unwraps it when a batch is scattered to devices. One process of devrun has
# one device, so the whole batch is one chunk and its parts are unwrapped at once:
# models and adapters see tensors, lists and dicts only.


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
            # (N, 1) indices as (N, classes)
            loss.convert_to_one_hot = lambda targets, classes: functional.one_hot(
                targets.long().squeeze(-1), classes
            )
    elif name == "mmseg":
        for module in ("decode_head", "point_head"):
            head: Any = import_module(f"mmseg.models.decode_heads.{module}")
            head.accuracy = partial(_accuracy, head.accuracy)


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
