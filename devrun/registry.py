"""Registries: a name in a config becomes a class, and its keys the arguments.

    MODELS.build({"type": "ResNet", "depth": 18})                 a registered name
    MODELS.build({"type": "torchvision.models.resnet18"})         a dotted path
    MODELS.build({"type": "scope.ImageClassifier", ...})          a scope's, see scopes

A dotted path is taken only where the registry says what it must yield, and by the
rules of `devrun.trust`, so that a config can name a model but can never call an
arbitrary function.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol, TypeVar, overload, runtime_checkable

from devrun.construct import (
    Buildable,
    call,
    call_named,
    nested_config,
    short,
    unshared,
    where,
)
from devrun.errors import ConfigError, ConfigTypeError, DevrunError, UnknownNameError
from devrun.scopes import Scoped, hint, scoped
from devrun.trust import accepted, import_path, takes_objects

_Module = TypeVar("_Module", bound=Buildable)


@runtime_checkable
class Metric(Protocol):
    """What a metric does, in torchmetrics' words."""

    def update(self, *args: Any, **kwargs: Any) -> None: ...
    def compute(self) -> Any: ...
    def reset(self) -> None: ...


@runtime_checkable
class Transform(Protocol):
    def __call__(self, *args: Any, **kwargs: Any) -> Any: ...


class Registry:
    """Maps names to classes and functions; MMCV's registry with dotted paths.

    Args:
        name: what it holds, in the singular, as messages say it.
        build_func: called by `build`; inherited from `parent`, else `build_from_cfg`.
        parent: the registry whose lookups `scope.Name` may end here.
        scope: this registry's scope; the top package of the caller if not given.
        expects: returns the class (or protocol) that a dotted path must yield;
            called at the first dotted path. Without it only names are accepted.
        home: the module whose import registers the built-in names; imported when a
            name is looked up that is not there yet.
    """

    def __init__(
        self,
        name: str,
        build_func: Buildable | None = None,
        parent: Registry | None = None,
        scope: str | None = None,
        *,
        expects: Callable[[], type] | None = None,
        home: str | None = None,
    ) -> None:
        self.name = name
        self.scope = self.infer_scope() if scope is None else scope
        self.module_dict: dict[str, Buildable] = {}
        self.children: dict[str, Registry] = {}
        self.parent: Registry | None = None
        self.yielding: set[str] = set()
        """Names whose next registration replaces the first, without `force`."""
        self._expects = expects
        self._home = home
        if parent is not None:
            if not isinstance(parent, Registry):
                raise ConfigTypeError(f"parent must be a Registry, got {parent!r}")
            parent._add_child(self)
            self.parent = parent
            build_func = build_func or parent.build_func
            self._expects = expects or parent._expects
        self.build_func: Buildable = build_func or build_from_cfg

    _module_dict = property(lambda self: self.module_dict)  # as code for MMCV reads it

    def __len__(self) -> int:
        return len(self.module_dict)

    def __contains__(self, key: str) -> bool:
        return self.get(key) is not None

    def __repr__(self) -> str:
        return f"Registry(name={self.name}, items={sorted(self.module_dict)})"

    @staticmethod
    def infer_scope() -> str:
        """The top package of the module that constructs the registry."""
        module: str = sys._getframe(2).f_globals.get("__name__", "")
        return module.split(".")[0]

    @staticmethod
    def split_scope_key(key: str) -> tuple[str | None, str]:
        """`"scope.ResNet"` -> `("scope", "ResNet")`; no dot -> `(None, key)`."""
        scope, dot, rest = key.partition(".")
        return (scope, rest) if dot else (None, key)

    def get(self, key: str) -> Buildable | None:
        """What is registered as `key`, or as `Key` in the child of `scope.Key`."""
        scope, real_key = self.split_scope_key(key)
        if scope is None or scope == self.scope:
            if real_key not in self.module_dict and self._home is not None:
                importlib.import_module(self._home)
            return self.module_dict.get(real_key)
        if scope in self.children:
            return self.children[scope].get(real_key)
        root = self
        while root.parent is not None:
            root = root.parent
        return None if root is self else root.get(key)

    def resolve(self, name: str) -> Buildable:
        """The class or function that `type: name` selects.

        Raises:
            UnknownNameError: no registered name, no name of a scope, no dotted path.
            ConfigError: a dotted path that cannot be imported, or to something that
                this registry does not hold.
        """
        if (theirs := self.scoped(name)) is not None:
            return theirs.target
        found = self.get(name)
        if found is None and "." in name and self._expects is not None:
            there = import_path(name)
            found = self.get(name)  # the import may have registered it
            if found is None:
                found = accepted(there, self._expects(), self.name)
        if found is None:
            raise UnknownNameError(
                f"{name!r} is not in the {self.name} registry"
                f"{hint(self.name, name, self.module_dict)}"
            )
        return found

    def scoped(self, name: str) -> Scoped | None:
        """What another package's scope has for `type: name`.

        Only devrun's own registries stand for theirs; one that a package made has what
        it has, also when a name of that package is built by its own code.
        """
        return scoped(self.name, name) if self.scope == "devrun" else None

    def expected(self) -> type:
        """What a dotted path must yield: a class or a protocol."""
        return object if self._expects is None else self._expects()

    def build(
        self, cfg: Any, default_args: Mapping[str, Any] | None = None, **kwargs: Any
    ) -> Any:
        """What `build_func` makes of `cfg`; see `build_from_cfg`."""
        if default_args is not None:  # a build_func of one's own may not take it
            kwargs["default_args"] = default_args
        return self.build_func(cfg, registry=self, **kwargs)

    @overload
    def register_module(self, name: _Module, force: bool = False) -> _Module: ...
    @overload
    def register_module(
        self,
        name: str | Sequence[str] | None = None,
        force: bool = False,
        module: None = None,
    ) -> Callable[[_Module], _Module]: ...
    @overload
    def register_module(
        self,
        name: str | Sequence[str] | None = None,
        force: bool = False,
        *,
        module: _Module,
    ) -> _Module: ...
    def register_module(
        self,
        name: str | Sequence[str] | Buildable | None = None,
        force: bool = False,
        module: Buildable | None = None,
    ) -> Any:
        """Register `module` under `name` (or several); without it, a decorator.

        Raises:
            UnknownNameError: (a KeyError) the name is taken and `force` is False.
            ConfigTypeError: not a class or function, or a name that is no string.
        """
        if not isinstance(force, bool):
            raise ConfigTypeError(f"force must be a bool, got {force!r}")
        if callable(name):  # @REGISTRY.register_module, without brackets
            name, module = None, name
        listed = [name] if isinstance(name, str) else name
        if listed is not None and not (
            isinstance(listed, (list, tuple))
            and all(isinstance(entry, str) for entry in listed)
        ):
            raise ConfigTypeError(
                f"name must be None, a string or a list of strings, got {name!r}"
            )

        def decorate(module: Any) -> Any:
            self._add(module, listed, force)
            return module

        return decorate if module is None else decorate(module)

    def _add(self, module: Any, names: Iterable[str] | None, force: bool) -> None:
        if not (inspect.isclass(module) or inspect.isfunction(module)):
            raise ConfigTypeError(
                f"only a class or a function can be registered, got {module!r}"
            )
        for name in [module.__name__] if names is None else names:
            if not force and name in self.module_dict and name not in self.yielding:
                raise UnknownNameError(
                    f"{name!r} is already registered in the {self.name} registry, by "
                    f"{self.module_dict[name].__module__}; force=True replaces it"
                )
            self.module_dict[name] = module
            self.yielding.discard(name)

    def _add_child(self, child: Registry) -> None:
        if child.scope in self.children:
            raise ConfigError(
                f"the {self.name} registry already has a child with the scope "
                f"{child.scope!r}; give this one another scope"
            )
        self.children[child.scope] = child


def build_from_cfg(
    cfg: Mapping[str, Any],
    registry: Registry,
    default_args: Mapping[str, Any] | None = None,
) -> Any:
    """Call what `cfg["type"]` names with the other keys of `cfg` as arguments.

    Keys of `default_args` apply where `cfg` has none. `cfg` is left as it was, also
    by a constructor that changes what it is given.

    Raises:
        ConfigTypeError: (a TypeError) `cfg` is no dict, `type` is no name, class or
            function, or an argument is missing or not known; checked before the call.
        UnknownNameError: (a KeyError) no `type`, or a name that nothing has.
        ConfigError: the constructor failed; its exception is the `__cause__`.
    """
    for value, label in ((cfg, "cfg"), (default_args, "default_args")):
        if not isinstance(value, dict) and not (value is None and label != "cfg"):
            raise ConfigTypeError(f"{label} must be a dict, got {short(value)}")
    if not isinstance(registry, Registry):
        raise ConfigTypeError(f"registry must be a Registry, got {short(registry)}")
    args = {**(default_args or {}), **{k: unshared(v) for k, v in cfg.items()}}
    if "type" not in args:
        raise UnknownNameError(
            f"no 'type' for the {registry.name}; the keys are: "
            f"{', '.join(map(str, args)) or 'none'}",
            place=where(cfg),
        )
    wanted = args.pop("type")
    if isinstance(wanted, str):
        try:
            theirs = registry.scoped(wanted)
            target = registry.resolve(wanted) if theirs is None else theirs.target
        except DevrunError as error:
            error.locate(where(cfg, "type"))
            raise
        if theirs is not None:
            return theirs.scope.build(registry.name, theirs.name, target, args, cfg)
        if registry.get(wanted) is None:  # a dotted path
            return _build_named(target, args, cfg, registry)
    elif inspect.isclass(wanted) or inspect.isfunction(wanted):
        target = wanted
    else:
        raise ConfigTypeError.of(
            "type",
            f"must be a name, a class or a function, got {short(wanted)}",
            where(cfg, "type"),
        )
    return call(target, args, cfg)


def _build_named(
    target: Buildable, args: dict[str, Any], cfg: Mapping[str, Any], registry: Registry
) -> Any:
    """Call what a dotted path named; parts that it wants as objects are built first."""
    try:
        args = {key: nested_config(value, target) for key, value in args.items()}
        if takes_objects(target):
            args = {key: _part(key, value, registry) for key, value in args.items()}
    except DevrunError as error:
        error.locate(where(cfg))
        raise
    result = call_named(target, args, cfg)
    expected = registry.expected()
    if not (inspect.isclass(target) or isinstance(result, expected)):
        raise ConfigTypeError(
            f"{cfg['type']!r} made no {registry.name}: "
            f"{short(result)}; that takes an object of {expected.__module__}."
            f"{expected.__qualname__}",
            place=where(cfg, "type"),
        )
    return result


def _part(key: str, value: Any, owner: Registry) -> Any:
    """The value of an argument that known packages take as an object."""
    registry = _PARTS.get(key)
    if registry is None:
        return value
    if isinstance(value, dict) and "type" in value:
        return registry.build(value)
    if not (
        isinstance(value, (list, tuple)) and any(isinstance(v, dict) for v in value)
    ):
        return value
    if owner is not TRANSFORMS and registry is TRANSFORMS:
        return registry.build({"type": "Compose", "transforms": value})
    return [_part(key, entry, owner) for entry in value]


def _lazily(module: str, name: str) -> Callable[[], type]:
    return functools.lru_cache(maxsize=None)(
        lambda: getattr(importlib.import_module(module), name)
    )


_MODULE = _lazily("torch.nn", "Module")

RUNNERS = Registry(
    "runner",
    home="devrun.runners",
    expects=_lazily("devrun.runners.runner", "BaseRunner"),
)
RUNNER_BUILDERS = Registry("runner builder", home="devrun.runners")
HOOKS = Registry(
    "hook", home="devrun.hooks", expects=_lazily("devrun.hooks.base", "Hook")
)
MODELS = Registry("model", home="devrun.models", expects=_MODULE)
LOSSES = Registry("loss", home="devrun.models", expects=_MODULE)
DATASETS = Registry(
    "dataset", home="devrun.data", expects=_lazily("torch.utils.data", "Dataset")
)
TRANSFORMS = Registry("transform", home="devrun.data", expects=lambda: Transform)
OPTIMIZERS = Registry(
    "optimizer", home="devrun.optim", expects=_lazily("torch.optim", "Optimizer")
)
OPTIMIZER_BUILDERS = Registry(
    "optimizer constructor",
    home="devrun.optim",
    expects=_lazily("devrun.optim", "DefaultOptimizerConstructor"),
)
COLLATE_FUNCTIONS = Registry(
    "collate function", home="devrun.data", expects=lambda: Transform
)
METRICS = Registry("metric", home="devrun.metrics", expects=lambda: Metric)
LR_SCHEDULERS = Registry(
    "learning-rate scheduler",
    home="devrun.hooks",
    expects=_lazily("torch.optim.lr_scheduler", "LRScheduler"),
)
_PARTS = {
    "collate_fn": COLLATE_FUNCTIONS,
    "dataset": DATASETS,
    "datasets": DATASETS,
    "model": MODELS,
    "target_transform": TRANSFORMS,
    "transform": TRANSFORMS,
    "transforms": TRANSFORMS,
}
"""Argument of torch's, torchvision's, timm's or peft's -> what builds it."""
