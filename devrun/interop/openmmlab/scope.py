"""A package on MMCV 1.x as a scope: its registries, built by their own code."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from importlib import import_module
from typing import Any

from devrun.construct import Buildable, call, check_call
from devrun.errors import DevrunError
from devrun.interop.openmmlab import hooks
from devrun.interop.openmmlab.parts import (
    collate,
    explain_evaluate,
    ignore_others,
    keep_values_on_device,
    offer_augments,
)
from devrun.interop.packages import (
    explained,
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
        make = self._builder(kind)
        section = in_dicts(import_module("mmcv").ConfigDict, {"type": name, **args})

        def built(**_: Any) -> Any:
            return make(section)

        built.__name__ = name
        try:
            made = call(built, args, cfg)
        except DevrunError as error:
            known = partial(self._known, kind)
            told = explained(error, cfg, self.name, known)
            raise told from error.__cause__
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
