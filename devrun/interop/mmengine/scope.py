"""A package on MMEngine as a scope: its registries, built by their own code."""

from __future__ import annotations

import logging
import re
import warnings
from collections.abc import Iterable, Mapping
from importlib import import_module
from typing import Any

from devrun.construct import Buildable, call, check_call, where
from devrun.errors import ConfigError, DevrunError, UnknownNameError, nearest
from devrun.interop import numpy2
from devrun.interop.loading import imported, read_weights_here
from devrun.interop.mmengine.adapters import ADAPTERS, OWN
from devrun.interop.operators import stand_in
from devrun.interop.sections import in_dicts, place_of
from devrun.scopes import SCOPES
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
_HINTS = (
    (r"mmcv\._ext|No module named 'mmcv\.", "it needs MMCV's compiled operators: mmcv"),
    (r"MMCV==\S+ is used", "mmcv 2.1 fits (mmcv-lite has no compiled operators)"),
    (
        r"No module named 'mmcv'",
        "install mmcv==2.1.0, or mmcv-lite==2.1.0, which has no compiled operators",
    ),
    (r"No module named '(\S+?)'", r"install \1"),
)


_UNKNOWN = re.compile(r"([\w/.-]+) is not in the (\w+)::([\w ]+) registry")
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

        def built(**_: Any) -> Any:
            with self._default():
                made = target(**given)
                if kind == "dataset" and hasattr(made, "full_init"):
                    made.full_init()
                return made

        built.__name__ = name
        try:
            return call(built, args, cfg)
        except DevrunError as error:
            told = self._unknown(error, cfg)
            if told is not None:
                raise told from None
            raise

    def _chain(self, kind: str) -> Iterable[Any]:
        """The package's registry and those it inherits from."""
        name = _REGISTRIES.get(kind, "")
        root = import_module("mmengine.registry")
        registry = getattr(self._module, name, getattr(root, name, None))
        while registry is not None:
            registry.import_from_location()
            yield registry
            registry = registry.parent

    def registers(self, kind: Any) -> bool:
        """Whether one of the registries has the class or function by its own name."""
        name = getattr(kind, "__name__", "")
        return any(
            registry.module_dict.get(name) is kind
            for of in _REGISTRIES
            for registry in self._chain(of)
        )

    def _theirs(self, kind: str, name: str) -> Buildable | None:
        for registry in self._chain(kind):
            if name in registry.module_dict:
                return registry.module_dict[name]  # type: ignore[no-any-return]
        return None

    def _unknown(
        self, error: DevrunError, cfg: Mapping[str, Any]
    ) -> DevrunError | None:
        """The unknown name of a part, in devrun's words, and where it was written."""
        found = _UNKNOWN.search(str(error.__cause__ or ""))
        if found is None:
            return None
        name, scope, group = found.groups()
        known: list[str] = []
        for registry in vars(self._module).values():
            if getattr(registry, "name", None) == group:
                inherited = getattr(registry.parent, "module_dict", ())
                known += [*registry.module_dict, *inherited]
        told = UnknownNameError(
            f"{name!r} is not in the {group} registry of {scope}; "
            f"{nearest(name, known)}"
        )
        told.locate(place_of(name, cfg) or where(cfg))
        return told

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
        for module in ("mmengine", "mmengine.registry", f"{name}.registry"):
            imported(name, module, _HINTS)
        logger: Any = import_module("mmengine.logging").MMLogger
        if not logger.check_instance_created("mmengine"):
            logger.get_instance("mmengine", log_level="WARNING")
        imported(name, "mmengine.model", _HINTS)
        stand_in()
        if name != "mmengine":
            for part in ("models", "datasets"):
                imported(name, f"{name}.{part}", _HINTS)
        read_weights_here(import_module("mmengine.runner").CheckpointLoader)
        numpy2.mend(name)
    logging.getLogger("mmengine").setLevel(logging.WARNING)
    return EngineScope(name)
