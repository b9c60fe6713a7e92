"""What a dotted path in a config may stand for: the one place that decides.

A config from elsewhere is data. What its dotted paths lead to is judged by the object
that is there, never by its own claims, such as an annotation:

1. a class of the kind that the key needs; of the packages in `MODULES` only one of the
   modules listed there. "Anything that can be called" (a transform, a collate function)
   is no kind: it takes a `torch.nn.Module`, a class of `CALLABLES`, or one of the
   user's own code, which no installer put there;
2. a factory that its package lists as one of its models, or one of `FACTORIES`;
3. what the user allows, in code (`allow_factory`) or on the command line.

What is imported for it is installed, or on the path by the user's will, and never a
file that merely is beside the config.

What such a class does with its arguments is its package's; see docs/threat-model.md.
`--trust-config` lifts all of this: the config is then as good as a program.
"""

from __future__ import annotations

import importlib
import inspect
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from importlib.machinery import PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from devrun.blame import cause_of
from devrun.errors import ConfigError, UnknownNameError, nearest
from devrun.network import network_closed
from devrun.place import Place
from devrun.python38 import is_standard

MODULES = (
    "devrun.data", "devrun.hooks", "devrun.metrics", "devrun.models", "devrun.optim",
    "devrun.runners", "peft", "timm.data",
    "timm.layers", "timm.loss", "timm.models", "timm.optim", "timm.scheduler",
    "torch.nn.modules", "torch.optim", "torch.utils.data.dataset",
    "torch.utils.data.distributed", "torch.utils.data.sampler", "torchmetrics",
    "torchvision.datasets", "torchvision.models", "torchvision.ops",
    "torchvision.transforms", "transformers",
)  # fmt: skip
"""Of the packages that these are of, a config may name only classes from here."""
PACKAGES = frozenset(name.partition(".")[0] for name in MODULES)
CALLABLES = (
    "devrun.data.transforms", "devrun.metrics", "timm.data", "torchmetrics",
    "torchvision.transforms", "transformers.data.data_collator",
)  # fmt: skip
"""Modules whose callable classes are transforms or metrics."""
FACTORIES = frozenset(
    {
        "peft.mapping_func.get_peft_model",
        "timm.data.dataset_factory.create_dataset",
        "timm.data.loader.fast_collate",
        "timm.data.transforms_factory.create_transform",
        "timm.models._factory.create_model",
        "torch.utils.data._utils.collate.default_collate",
        "torch.utils.data._utils.collate.default_convert",
        "torchvision.models._api.get_model",
        "transformers.data.data_collator.default_data_collator",
    }
)
"""Functions by the module that defines them. Their result is checked by the key."""
LOADERS = ("from_config", "from_pretrained")
"""Class methods of transformers; they get `trust_remote_code` as False."""
RUNS_CODE: dict[str, Callable[[Any], bool]] = {
    "allow_all_kernels": bool,
    "allow_pickle": bool,
    "trust_remote_code": bool,
    "weights_only": lambda value: value is not None and not value,
}
"""Argument -> whether this value asks the callee, whichever it is, to run code."""
_FOR_PROGRAMS = "devrun.interop.mmcv"
"""What changes imports: one of these modules does it by being imported itself."""
_opened: set[str] = set()
"""Folders that are on sys.path for the modules that the user named, and no others."""
_allowed: set[Any] = set()
_granted: ContextVar[tuple[frozenset[str], bool]] = ContextVar(
    "granted", default=(frozenset(), False)
)


def allow_factory(factory: str | Callable[..., Any]) -> Any:
    """Let configs name `factory`, a dotted path or the callable itself; returned.

    Its result must still be what the key needs. Works as a decorator.
    """
    _allowed.add(factory)
    return factory


@contextmanager
def granted(paths: Iterable[str] = (), *, everything: bool = False) -> Iterator[None]:
    """Within: dotted `paths` are allowed, or `everything` that can be imported."""
    token = _granted.set((frozenset(paths), everything))
    try:
        yield
    finally:
        _granted.reset(token)


def is_allowed(path: str) -> bool:
    """Whether whoever runs this has allowed the dotted path itself."""
    paths, everything = _granted.get()
    return everything or path in paths or path in _allowed


def may_run_code() -> bool:
    """Whether the config at hand is as good as a program: `--trust-config`."""
    return _granted.get()[1]


@contextmanager
def built_from_config() -> Iterator[None]:
    """Within, what a config names is built: without the network, unless allowed."""
    with nullcontext() if may_run_code() else network_closed():
        yield


class Found(NamedTuple):
    """What is at a dotted path."""

    path: str
    target: Any
    module: str
    """The module that the path names."""


def import_path(path: str) -> Found:
    """The object at a dotted path; attributes of modules and classes, no further.

    Raises:
        ConfigError: no path, or the import is refused or fails.
        UnknownNameError: the package or the name in it is not there.
    """
    parts = path.split(".")
    if not all(part.isidentifier() for part in parts):
        raise ConfigError(f"{path!r} is not a dotted path")
    load = importlib.import_module if may_run_code() else import_for_config
    for cut in range(len(parts) - 1, 0, -1):
        module = ".".join(parts[:cut])
        try:
            target: Any = load(module)
            for part in parts[cut:]:
                target = _attribute(target, part, path, module)
        except ConfigError:
            raise
        except Exception as error:
            absent = error.name if isinstance(error, ModuleNotFoundError) else None
            if absent is not None and f"{module}.".startswith(f"{absent}."):
                continue  # a class in a class, or not there at all
            cause = cause_of(error)
            raise ConfigError(f"{path!r}: importing it failed: {cause}") from error
        return Found(path, target, module)
    how = f"pip install {parts[0]}" if parts[0] in PACKAGES else "install it"
    raise UnknownNameError(
        f"{path!r} needs the package {parts[0]!r}, which is not installed: {how}, or "
        "put its folder on PYTHONPATH"
    )


def _attribute(owner: Any, name: str, path: str, module: str) -> Any:
    """`owner.name`; `_ELSEWHERE` from an owner that is neither module nor class."""
    if name.startswith("__"):
        return _ELSEWHERE
    if inspect.ismodule(owner):
        if owner.__name__.partition(".")[0] != path.partition(".")[0]:
            return _ELSEWHERE  # of a module that `module` merely uses, such as os
    elif inspect.isclass(owner):
        found = inspect.getattr_static(owner, name, None)
        if found is not None and not isinstance(found, (type, classmethod)):
            return _ELSEWHERE  # to ask a property or descriptor would call it
    else:
        return _ELSEWHERE
    if not hasattr(owner, name):
        hint = nearest(name, dir(owner))
        raise UnknownNameError(f"{path!r}: {module} has no {name!r}; {hint}")
    return getattr(owner, name)


_ELSEWHERE = object()


def accepted(found: Found, expected: type, what: str) -> Callable[..., Any]:
    """What is `found`, if it yields an `expected`; else ConfigError."""
    target = found.target
    if callable(target) and (
        is_allowed(found.path)
        or any(target is one for one in _allowed)
        or (
            _is_kind(found, expected) if inspect.isclass(target) else is_factory(target)
        )
    ):
        return target  # type: ignore[no-any-return]
    taken = f"a class derived from {expected.__module__}.{expected.__qualname__}"
    if _is_protocol(expected):
        taken = "a torch.nn.Module, or such a class of a known package or of your own"
    own = callable(target) and _top(_home(target)) == _top(found.path)
    advice = f"; if you would run it, list it with --allow-factory {found.path}"
    raise ConfigError(
        f"{found.path!r} cannot be the type of {'an' if what[0] in 'aeiou' else 'a'} "
        f"{what}: that takes {taken}, or a listed factory"
        f"{advice if own and _top(found.path) not in PACKAGES else ''}"
    )


def _is_kind(found: Found, expected: type) -> bool:
    """Whether the class at the path is of the kind, and from where such come."""
    target = found.target
    home = _home(target)
    if _at(home, target.__qualname__) is not target:
        home = found.module  # it does not come from where it says
    top = _top(home)
    if is_standard(top) or not _is_for_configs(home):
        return False
    if not issubclass(target, expected):
        return False
    if not _is_protocol(expected):
        return True
    torch: Any = sys.modules.get("torch")
    if torch is not None and issubclass(target, torch.nn.Module):
        return True
    if top in PACKAGES:
        return _within(home, CALLABLES)
    return top in sys.modules and not is_installed(sys.modules[top])


def _is_protocol(expected: type) -> bool:
    """Whether it is a protocol, which defines what an object can do, not what it is."""
    return bool(getattr(expected, "_is_protocol", False))


def _at(module: str, name: str) -> Any:
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    return found


def is_config(found: Found, package: str) -> bool:
    """Whether at the path is a class named ...Config of `package`."""
    target = found.target
    return (
        inspect.isclass(target)
        and target.__name__.endswith("Config")
        and _top(_home(target)) == package
        and _is_for_configs(_home(target))
    )


def _is_for_configs(module: str) -> bool:
    """Whether configs may name classes of `module`; of a package not listed, all."""
    return _top(module) not in PACKAGES or _within(module, MODULES)


def _top(module: str) -> str:
    return module.partition(".")[0]


def _within(module: str, names: Iterable[str]) -> bool:
    return any(f"{module}.".startswith(f"{name}.") for name in names)


def _home(target: Any) -> str:
    return str(getattr(target, "__module__", ""))


def is_factory(target: Any) -> bool:
    """Whether `target` is a function on one of the lists, and the very one."""
    home, name = _home(target), getattr(target, "__name__", "")
    if inspect.ismethod(target):
        owner = inspect.isclass(target.__self__)
        return owner and name in LOADERS and home.startswith("transformers.")
    if not inspect.isfunction(target) or _at(home, name) is not target:
        return False
    if f"{home}.{name}" in FACTORIES:
        return True
    timm: Any = sys.modules.get("timm.models")
    if timm is not None and home.startswith("timm.models."):
        return timm.is_model(name) and timm.model_entrypoint(name) is target
    if home.startswith("torchvision.models."):
        models: Any = sys.modules["torchvision.models"]
        builders = map(models.get_model_builder, models.list_models())
        return any(target is builder for builder in builders)
    return False


def takes_objects(target: Callable[..., Any]) -> bool:
    """Whether `target` is made by a listed package, which builds nothing from dicts."""
    kinds = target.__mro__ if inspect.isclass(target) else (target,)
    own, *bases = (_top(_home(kind)) for kind in kinds)
    return own in PACKAGES - {"devrun"} or bool({"timm", "torchvision"} & {*bases})


def fixed_arguments(target: Callable[..., Any]) -> dict[str, Any]:
    """Arguments that `target` always gets, so that it never asks to run code."""
    if inspect.ismethod(target) and not may_run_code() and is_factory(target):
        return {"trust_remote_code": False}
    return {}


def check_arguments(
    target: Callable[..., Any],
    args: Mapping[str, Any],
    place: Callable[[str], Place] = lambda key: Place(),
) -> None:
    """Refuse arguments, at any depth, that ask the callee to run code.

    `place` gives where a key of `args` was written.

    Raises:
        ConfigError: with the name of the argument.
    """
    if may_run_code():
        return
    for key, value in args.items():
        for name in _asking(key, value):
            callee = getattr(target, "__name__", target)
            raise ConfigError(
                f"{callee} is not given {name!r} with this value from a "
                f"config, as it could run or unpickle what comes with it; "
                f"--trust-config allows it for a config that you would run",
                place=place(key),
            )


def _asking(key: Any, value: Any) -> Iterator[Any]:
    """The names, at any depth, that ask to run code."""
    if key in RUNS_CODE and RUNS_CODE[key](value):
        yield key
    elif isinstance(value, Mapping):
        for name, inner in value.items():
            yield from _asking(name, inner)
    elif isinstance(value, (list, tuple)):
        for inner in value:
            yield from _asking(None, inner)


# Imports ----------------------------------------------------------------------


def import_for_config(name: str) -> ModuleType:
    """The module `name`, which a config names.

    Raises:
        ConfigError: it is of the standard library, a program (`__main__`), or in a
            folder that is on the path by accident: the current one, or that of a
            module which the user named.
        Exception: whatever its own code raises.
    """
    top, *rest = name.split(".")
    if is_standard(top):
        raise ConfigError(
            f"{name!r} is in the standard library, which is not for a config"
        )
    if any(part.startswith("__") for part in (top, *rest)):
        raise ConfigError(f"{name!r} is not for a config: a part begins with '__'")
    if name.startswith(_FOR_PROGRAMS):
        raise ConfigError(
            f"{name!r} changes what is imported, which a config cannot ask for: give "
            "the flag --mmcv"
        )
    closed = _closed()
    try:
        with _without(closed):
            return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name != top or PathFinder.find_spec(top, [*closed]) is None:
            raise
    raise ConfigError(
        f"{name!r} is in {' or '.join(closed)}, from which a config cannot import: "
        f"name it with --import {name}, or put that folder on PYTHONPATH"
    )


def import_for_user(name: str, folders: Iterable[str | Path]) -> ModuleType:
    """The module `name`, which the user asked for; first looked up in `folders`.

    The folder that has it stays at the head of sys.path, for what the module imports
    later and for worker processes.
    """
    importlib.invalidate_caches()  # the file may be younger than the last look
    for folder in dict.fromkeys(os.path.abspath(folder) for folder in folders):
        if PathFinder.find_spec(name.partition(".")[0], [folder]) is not None:
            if folder not in sys.path:
                sys.path.insert(0, folder)
                _opened.add(folder)
            break
    return importlib.import_module(name)


def is_installed(module: ModuleType) -> bool:
    """Whether the top-level `module` was put where it is by an installer."""
    places = [*getattr(module, "__path__", ())] or [getattr(module, "__file__", None)]
    folders = [Path(place).parent for place in places if place]
    return not folders or any(
        folder.name in ("site-packages", "dist-packages")
        or any(folder.glob("*.dist-info"))
        for folder in folders
    )


@contextmanager
def _without(closed: set[str]) -> Iterator[None]:
    """Within, nothing is found in these folders."""
    kept = [folder for folder in sys.path if os.path.abspath(folder) in closed]
    sys.path[:] = [folder for folder in sys.path if folder not in kept]
    try:
        yield
    finally:
        sys.path[:0] = kept


def _closed() -> set[str]:
    """Folders on sys.path that were not added for a config."""
    here = os.getcwd()
    given = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    by_accident = "" in given and len(given) > 1  # PYTHONPATH=$UNSET:/somewhere
    named = here in map(os.path.abspath, filter(None, given))
    if named or not (by_accident or ("" in sys.path and here not in sys.path)):
        return _opened
    return {here, *_opened}
