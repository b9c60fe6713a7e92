"""A package on MMEngine as a scope: its registries, built by their own code."""

from __future__ import annotations

import inspect
import logging
import re
import warnings
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from importlib import import_module
from itertools import zip_longest
from typing import Any

from devrun.construct import Buildable, check_call, where
from devrun.dist import gather_objects
from devrun.errors import ConfigError
from devrun.interop.mmengine.hooks import EngineHook, ParamSchedulerHook, PreciseBNHook
from devrun.interop.mmengine.step import Stacked
from devrun.interop.packages import (
    SCOPES,
    built_by,
    imported,
    in_dicts,
    mend_numpy,
    read_weights_here,
    stand_in,
)
from devrun.metrics import StatefulMetric
from devrun.trust import may_run_code

_REGISTRIES = {
    "model": "MODELS",
    "loss": "MODELS",
    "dataset": "DATASETS",
    "transform": "TRANSFORMS",
    "sampler": "DATA_SAMPLERS",
    "collate function": "FUNCTIONS",
    "metric": "METRICS",
    "optimizer": "OPTIMIZERS",
    "optimizer constructor": "OPTIM_WRAPPER_CONSTRUCTORS",
    "hook": "HOOKS",
    "learning-rate scheduler": "PARAM_SCHEDULERS",
}
"""Registry of devrun's -> that of MMEngine and of each package on it."""
_SCOPE = "|".join(SCOPES)
_NAMES = {"type": re.compile(rf"(({_SCOPE})\.)?[\w/-]+"), "_scope_": re.compile(_SCOPE)}


def check_names(node: Any) -> None:
    """Refuse a `type` or `_scope_`, at any depth, that is no registered name.

    MMEngine's registries import any dotted path and call what it leads to.

    Raises:
        ConfigError: with the place of the key.
    """
    if isinstance(node, Mapping):
        for key in {"type", "_scope_"} & node.keys():
            given = node[key]
            if isinstance(given, str) and not _NAMES[key].fullmatch(given):
                raise ConfigError(
                    f"{key} {given!r} names code, and parts are named, as Name or "
                    "scope.Name; --trust-config allows it for a config that you would "
                    "run",
                    place=where(node, key),
                )
        node = node.values()
    elif not isinstance(node, (list, tuple)):
        return
    for part in node:
        check_names(part)


class EngineScope:
    """The registries of a package on MMEngine."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._module = import_module(f"{name}.registry")

    def find(self, kind: str, name: str) -> Buildable | None:
        """The class itself, or what stands for it on devrun's runner."""
        own = OWN.get((kind, name))
        if own is not None:
            return own
        found = self._theirs(kind, name)
        adapt = ADAPTERS.get(kind)
        return found if adapt is None or found is None else adapt(found)

    def names(self, kind: str) -> Iterable[str]:
        known = [name for of, name in OWN if of == kind]
        for registry in self._chain(kind):
            known += registry.module_dict
        return sorted(set(known))

    def build(
        self,
        kind: str,
        name: str,
        target: Buildable,
        args: dict[str, Any],
        cfg: Mapping[str, Any],
    ) -> Any:
        """By their registry, so that parts are made by their code from their names.

        Raises:
            ConfigError: in one line, with the place of the part that is wrong.
        """
        if not may_run_code():
            check_names(cfg)
        check_call(target, args, cfg)
        own_dict = import_module("mmengine.config").ConfigDict
        given = {key: in_dicts(own_dict, value) for key, value in args.items()}

        def make() -> Any:
            with self._default():
                made = target(**given)
                if kind == "dataset" and hasattr(made, "full_init"):
                    made.full_init()
                return made

        return built_by(make, name, args, cfg, self.name, self._known)

    def _chain(self, kind: str) -> Iterable[Any]:
        """The package's registry and those it inherits from."""
        name = _REGISTRIES.get(kind, "")
        root = import_module("mmengine.registry")
        registry = getattr(self._module, name, getattr(root, name, None))
        while registry is not None:
            registry.import_from_location()
            yield registry
            registry = registry.parent

    def _theirs(self, kind: str, name: str) -> Buildable | None:
        for registry in self._chain(kind):
            if name in registry.module_dict:
                return registry.module_dict[name]  # type: ignore[no-any-return]
        return None

    def _known(self, group: str) -> list[str]:
        """The names of a registry, and of that which it inherits from."""
        known: list[str] = []
        for registry in vars(self._module).values():
            if getattr(registry, "name", None) == group:
                inherited = getattr(registry.parent, "module_dict", ())
                known += [*registry.module_dict, *inherited]
        return known

    def _default(self) -> Any:
        """Inside, names without a scope are those of this package, as in its runner."""
        scope: Any = import_module("mmengine.registry").DefaultScope
        known = scope.check_instance_created(f"devrun-{self.name}")
        if not known and self.name != "mmengine":
            # it stays: what is built later, by a pipeline or metric, is theirs too
            scope.get_instance(f"devrun-{self.name}", scope_name=self.name)
        return scope.overwrite_default_scope(self.name)


def attach(name: str) -> EngineScope:
    """The scope of the package `name`, imported.

    Raises:
        ConfigError: importing it fails.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of packages that are no longer maintained
        modules = ("mmengine", "mmengine.registry", f"{name}.registry")
        imported(name, "mmengine", *modules)
        logger: Any = import_module("mmengine.logging").MMLogger
        if not logger.check_instance_created("mmengine"):
            logger.get_instance("mmengine", log_level="WARNING")
        imported(name, "mmengine", "mmengine.model")
        stand_in()
        if name != "mmengine":
            imported(name, "mmengine", f"{name}.models", f"{name}.datasets")
        read_weights_here(import_module("mmengine.runner").CheckpointLoader)
        mend_numpy(name)
    logging.getLogger("mmengine").setLevel(logging.WARNING)
    return EngineScope(name)


class EngineMetric(StatefulMetric):
    """A metric of MMEngine: `process` for each batch, `compute_metrics` for all.

    Names of its results are `prefix/name`, as MMEngine's own evaluator gives them.
    """

    def __init__(self, metric: Any) -> None:
        self.name, self.metric = type(metric).__name__, metric
        self._size: int | None = None

    def attach(self, dataset: Any) -> None:
        """Tell it of the data that it will see."""
        self.metric.dataset_meta = getattr(dataset, "metainfo", None)
        self._size = len(dataset)

    def reset(self) -> None:
        self.metric.results.clear()

    def update(self, outputs: Mapping[str, Any]) -> None:
        samples = outputs.get("predictions")
        if isinstance(samples, Stacked):
            samples = [samples.row(index) for index in range(len(samples))]
        if not isinstance(samples, (list, tuple)):
            raise ConfigError(
                f"metric {self.name!r} is of MMEngine and takes the data samples that "
                "a model of MMEngine predicts; this one gave "
                f"{type(samples).__name__}"
            )
        dicts = [s.to_dict() if hasattr(s, "to_dict") else s for s in samples]
        self.metric.process(data_batch=outputs.get("batch"), data_samples=dicts)

    def compute(self) -> dict[str, Any]:
        """The results over all ranks, each sample once."""
        shares = gather_objects(list(self.metric.results))
        rows: Iterable[Any] = zip_longest(*shares, fillvalue=_NONE)
        merged = [part for row in rows for part in row if part is not _NONE]
        to_cpu = import_module("mmengine.evaluator.metric")._to_cpu
        found = self.metric.compute_metrics(to_cpu(merged[: self._size]))
        prefix = f"{self.metric.prefix}/" if self.metric.prefix else ""
        return {f"{prefix}{key}": _number(value) for key, value in found.items()}


_NONE = object()


def _number(value: Any) -> Any:
    """A 0-d tensor or numpy number as a float; lists (one for each class) as text."""
    if getattr(value, "ndim", None) == 0 or isinstance(value, (int, float)):
        return float(value)
    return str(value.tolist() if hasattr(value, "tolist") else value)


def _standing_for(base: type, kind: Any) -> type:
    """A class called as `kind` is, whose objects hold one of it in `base`."""

    def init(self: Any, **arguments: Any) -> None:
        super(made, self).__init__(kind(**arguments))

    facts = {"__init__": init, "__signature__": inspect.signature(kind)}
    made: Any = type(kind.__name__, (base,), facts)
    return made  # type: ignore[no-any-return]


def _constructor(kind: Any) -> Buildable:
    """MMEngine's constructor makes a wrapper; devrun takes the optimizer out of it."""

    def constructor(
        optimizer_cfg: Mapping[str, Any], paramwise_cfg: Mapping[str, Any] | None = None
    ) -> Callable[[Any], Any]:
        section = dict(optimizer_cfg)
        wrapper = {"type": "OptimWrapper", "optimizer": section}
        made = kind(wrapper, paramwise_cfg)
        return lambda model: made(model).optimizer

    constructor.__name__ = getattr(kind, "__name__", "constructor")
    return constructor


ADAPTERS: dict[str, Callable[[Any], Buildable]] = {
    "hook": partial(_standing_for, EngineHook),
    "metric": partial(_standing_for, EngineMetric),
    "optimizer constructor": _constructor,
}
OWN: dict[tuple[str, str], Buildable] = {
    ("hook", "ParamSchedulerHook"): ParamSchedulerHook,
    ("hook", "PreciseBNHook"): PreciseBNHook,
}
"""What devrun has under a name of MMEngine's."""
