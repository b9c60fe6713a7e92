"""From a config's words to a call: dotted paths, arguments, and failures on one line.

What a registry does with names is in `devrun.registry`; here is what happens before
and around the constructor, so that a wrong argument is found before the call and a
failing constructor is reported with the place in the config it came from.
"""

from __future__ import annotations

import importlib
import inspect
import re
import sys
import types
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from devrun.errors import (
    ConfigError,
    ConfigTypeError,
    DeviceMemoryError,
    DevrunError,
    UnknownNameError,
    is_out_of_memory,
    nearest,
)
from devrun.redact import redact

__all__ = [
    "Buildable",
    "call",
    "checked",
    "import_path",
    "locate",
    "nested_config",
    "short",
    "unshared",
    "where",
    "where_named",
]

Buildable: TypeAlias = Callable[..., Any]

EXTRAS = {
    "timm": "timm",
    "torchmetrics": "metrics",
    "torchvision": "torchvision",
    "transformers": "transformers",
}
"""Package -> the extra of devrun that installs it."""

NUMBER = re.compile(r"[-+]?\d*\.?\d+(e[-+]?\d+)?", re.IGNORECASE)
PLACED = re.compile(r"[^:]+:\d+: |command line: ")
"""How a message begins that says its place in a config, as `where` gives it."""


def call(target: Buildable, args: dict[str, Any], cfg: Mapping[str, Any]) -> Any:
    """`target(**args)`, with arguments checked first and failures in one line."""
    name = target.__name__
    _check_arguments(target, args, cfg)
    try:
        return target(**args)
    except DevrunError as error:
        locate(error, where_named(cfg, str(error)), name)
        raise
    except Exception as error:
        kind: type[DevrunError] = ConfigError
        if is_out_of_memory(error):
            kind = DeviceMemoryError
        elif isinstance(error, TypeError):  # MMCV's `except TypeError` still catches
            kind = ConfigTypeError
        elif isinstance(error, KeyError):
            kind = UnknownNameError
        cause = " ".join(str(error).split())
        reason = f"{name} failed: {type(error).__name__}: {cause}{_texts(error, args)}"
        failure = kind(reason)
        locate(failure, where_named(cfg, reason))
        raise failure from error


def _texts(error: Exception, args: Mapping[str, Any]) -> str:
    """The arguments that are text, when `error` may be about one that should not be."""
    # other texts are not shown: one may be a secret under a key that does not say so
    texts = [
        f"{key}={value!r}" if NUMBER.fullmatch(value) else str(key)
        for key, value in args.items()
        if type(value) is str
    ]
    if not (isinstance(error, TypeError) and texts and "str" in str(error)):
        return ""
    return f" (text was given as {', '.join(texts)}; a number has no quotes)"


def _check_arguments(
    target: Buildable, args: Mapping[str, Any], cfg: Mapping[str, Any]
) -> None:
    try:
        parameters = inspect.signature(target).parameters.values()
    except (TypeError, ValueError):  # some classes written in C have no signature
        return
    by_name = [
        p.name
        for p in parameters
        if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)
    ]
    takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters)
    unexpected = [key for key in args if not takes_any and key not in by_name]
    missing = [
        p.name
        for p in parameters
        if p.default is p.empty
        and p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)
        and p.name not in args
    ]
    accepted = "" if takes_any else f"it accepts: {', '.join(by_name) or 'none'}"
    if unexpected:
        hint = nearest(unexpected[0], by_name)
        hint = f"{hint} " if hint.startswith("did you mean") else ""
        raise ConfigTypeError(
            f"{where(cfg, unexpected[0])}{target.__name__} got an unexpected argument "
            f"{unexpected[0]!r}; {hint}{accepted}"
        )
    if missing:
        raise ConfigTypeError(
            f"{where(cfg)}{target.__name__} needs {', '.join(map(repr, missing))}"
            f"{'; ' * bool(accepted)}{accepted}"
        )


def import_path(path: str) -> Any:
    """The object at a dotted path, outside the standard library."""
    parts = path.split(".")
    if not all(part.isidentifier() for part in parts):
        raise ConfigError(f"{path!r} is not a dotted path")
    if parts[0] in sys.stdlib_module_names:
        raise ConfigError(f"{path!r} is in the standard library: it cannot be a type")
    for cut in range(len(parts) - 1, 0, -1):
        module = ".".join(parts[:cut])
        try:
            target: Any = importlib.import_module(module)
            for part in parts[cut:]:
                if not hasattr(target, part):
                    raise UnknownNameError(_no_such_part(path, module, target, part))
                target = getattr(target, part)
        except UnknownNameError:
            raise
        except Exception as error:
            absent = error.name if isinstance(error, ModuleNotFoundError) else None
            if absent is not None and f"{module}.".startswith(f"{absent}."):
                continue  # a class in a class, or not there at all
            cause = " ".join(f"{type(error).__name__}: {error}".split())
            raise ConfigError(f"{path!r}: importing it failed: {cause}") from error
        return target
    extra = EXTRAS.get(parts[0])
    how = f"pip install 'devrun[{extra}]'" if extra else ""
    raise UnknownNameError(
        f"{path!r} needs the package {parts[0]!r}, which is not installed: "
        f"{how or 'install it, or put its folder on PYTHONPATH'}"
    )


def _no_such_part(path: str, module: str, owner: Any, part: str) -> str:
    classes = [name for name in dir(owner) if name[:1].isupper() == part[:1].isupper()]
    hint = nearest(part, classes)
    hint = hint if hint.startswith("did you mean") else "check the name"
    return f"{path!r}: {module} has no {part!r}; {hint}"


def checked(target: Any, path: str, expected: type, what: str) -> Buildable:
    """`target` if it yields an `expected`, else ConfigError."""
    kind = _returned_class(target) if inspect.isfunction(target) else target
    if inspect.isclass(kind) and issubclass(kind, expected):
        return target  # type: ignore[no-any-return]
    raise ConfigError(
        f"{path!r} cannot be the type of a {what}: that takes a class derived from "
        f"{expected.__module__}.{expected.__qualname__}, or a function annotated to "
        f"return one"
    )


def _returned_class(function: types.FunctionType) -> Any:
    """The return annotation; one written as text is looked up, never evaluated."""
    function = inspect.unwrap(function)
    annotation = function.__annotations__.get("return")
    if not isinstance(annotation, str):
        return annotation
    first, *rest = annotation.strip("'\" ").split(".")
    found = function.__globals__.get(first)
    for part in rest:
        found = getattr(found, part, None)
    return found


def nested_config(value: Any, owner: Buildable) -> Any:
    """`{"type": "pkg.XConfig", ...}` as an object, for an `owner` from `pkg`.

    Only a class named ...Config of the owner's own top package is called; any other
    value stays what it is.
    """
    if not (isinstance(value, dict) and isinstance(value.get("type"), str)):
        return value
    path: str = value["type"]
    package = str(owner.__module__).split(".")[0]
    if not path.startswith(f"{package}."):
        return value
    target = import_path(path)
    named = inspect.isclass(target) and target.__name__.endswith("Config")
    if not named or target.__module__.split(".")[0] != package:
        return value
    args = {k: nested_config(v, owner) for k, v in value.items() if k != "type"}
    return call(target, args, value)


def unshared(value: Any) -> Any:
    """A copy of the containers in `value`; what they hold is shared.

    Items are set past the class's own `__setitem__`, which a config may use to record
    a change.
    """
    if isinstance(value, dict):
        copied = value.copy()
        for key, entry in value.items():
            dict.__setitem__(copied, key, unshared(entry))
        return copied
    if isinstance(value, list):
        listed = value.copy()
        for index, entry in enumerate(value):
            list.__setitem__(listed, index, unshared(entry))
        return listed
    if type(value) is tuple:
        return tuple(unshared(entry) for entry in value)
    return value


def where(cfg: Mapping[str, Any], key: str | None = None) -> str:
    """`file:line: key.path: ` of a value read from a config file, else nothing."""
    from devrun.config import tree

    return tree.where(cfg, key)


def where_named(cfg: Mapping[str, Any], reason: str) -> str:
    """`where` of the one key of `cfg` that `reason` names, else of `cfg` itself.

    The argument that a constructor refuses may stand in another file than `type`.
    """
    words = set(re.findall(r"\w+", reason))
    named = [key for key in cfg if key in words and key != "type"]
    return where(cfg, named[0] if len(named) == 1 else None)


def locate(error: DevrunError, prefix: str, name: str = "") -> None:
    """Let `error` say where it is from; once, however deep the build is nested."""
    if not (vars(error).get("located") or PLACED.match(str(error))):
        named = f"{name}: " if name and name not in str(error) else ""
        error.args = (f"{prefix}{named}{error}", *error.args[1:])
    vars(error)["located"] = True


def short(value: Any) -> str:
    text = redact(" ".join(repr(value).split()))
    return f"{type(value).__name__} {text if len(text) <= 60 else text[:57] + '...'}"
