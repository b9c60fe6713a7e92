"""From a config's words to a call: arguments, and failures on one line.

What a registry does with names is in `devrun.registry`, and what a dotted path may be
in `devrun.trust`; here is what happens before and around the constructor, so that a
wrong argument is found before the call and a failing constructor is reported with the
place in the config it came from.
"""

from __future__ import annotations

import inspect
from collections.abc import Collection, Mapping
from typing import Any, Callable

from devrun.blame import cause_of
from devrun.config.tree import where as where
from devrun.errors import (
    ConfigError,
    ConfigTypeError,
    DeviceMemoryError,
    DevrunError,
    UnknownNameError,
    is_out_of_memory,
    nearest,
)
from devrun.place import Place
from devrun.redact import redact
from devrun.trust import (
    built_from_config,
    check_arguments,
    fixed_arguments,
    import_path,
    is_config,
    is_factory,
)

Buildable = Callable[..., Any]


def call(target: Buildable, args: dict[str, Any], cfg: Mapping[str, Any]) -> Any:
    """`target(**args)`, with arguments checked first and failures in one line."""
    name = target.__name__
    check_call(target, args, cfg)
    try:
        with built_from_config():
            return target(**args)
    except DevrunError as error:
        error.locate(where_key(cfg, error.key), name)
        raise
    except Exception as error:
        kind: type[DevrunError] = ConfigError
        if is_out_of_memory(error):
            kind = DeviceMemoryError
        elif isinstance(error, TypeError):  # MMCV's `except TypeError` still catches
            kind = ConfigTypeError
        elif isinstance(error, KeyError):
            kind = UnknownNameError
        texts = [str(key) for key, value in args.items() if type(value) is str]
        hint = f" (text was given as {', '.join(texts)}; a number has no quotes)"
        hint = hint if texts and kind is ConfigTypeError and "str" in str(error) else ""
        reason = f"{name} failed: {cause_of(error)}{hint}"
        key = texts[0] if hint and len(texts) == 1 else None
        raise kind(reason, place=where_key(cfg, key)) from error


def check_call(
    target: Buildable, args: Mapping[str, Any], cfg: Mapping[str, Any]
) -> None:
    """Refuse arguments of `target` that it does not take, and missing ones."""
    try:
        parameters = inspect.signature(target).parameters.values()
    except (TypeError, ValueError):  # some classes written in C have no signature
        return
    if _takes_more(target, parameters):
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
            f"{target.__name__} got an unexpected argument {unexpected[0]!r}; "
            f"{hint}{accepted}",
            place=where(cfg, unexpected[0]),
            key=unexpected[0],
        )
    if missing:
        raise ConfigTypeError(
            f"{target.__name__} needs {', '.join(map(repr, missing))}"
            f"{'; ' * bool(accepted)}{accepted}",
            place=where(cfg),
        )


def _takes_more(target: Buildable, shown: Collection[inspect.Parameter]) -> bool:
    """Whether a decorator of `target` takes any keyword and shows a shorter list."""
    entry = target.__init__ if inspect.isclass(target) else target
    code = getattr(entry, "__code__", None)
    takes_any = code is not None and bool(code.co_flags & inspect.CO_VARKEYWORDS)
    return takes_any and all(p.kind is not p.VAR_KEYWORD for p in shown)


def nested_config(value: Any, owner: Buildable) -> Any:
    """`{"type": "pkg.XConfig", ...}` as an object, for an `owner` from `pkg`.

    Only a class named ...Config of the owner's own top package is called, or a listed
    factory of it (`transformers.AutoConfig.from_pretrained`); any other value stays
    what it is.
    """
    if not (isinstance(value, dict) and isinstance(value.get("type"), str)):
        return value
    path: str = value["type"]
    package = str(owner.__module__).split(".")[0]
    if not path.startswith(f"{package}."):
        return value
    found = import_path(path)
    if not (is_config(found, package) or is_factory(found.target)):
        return value
    args = {k: nested_config(v, owner) for k, v in value.items() if k != "type"}
    return call_named(found.target, args, value)


def call_named(target: Buildable, args: dict[str, Any], cfg: Mapping[str, Any]) -> Any:
    """`call` of what a dotted path named, with arguments that let it run nothing."""
    check_arguments(target, args, lambda key: where(cfg, key))
    return call(target, {**args, **fixed_arguments(target)}, cfg)


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


def where_key(cfg: Mapping[str, Any], key: str | None) -> Place:
    """`where` of a key that `cfg` gives, else of `cfg` itself.

    The argument that a constructor refuses may stand in another file than `type`.
    """
    return where(cfg, key if key in cfg else None)


def short(value: Any) -> str:
    text = redact(" ".join(repr(value).split()))
    return f"{type(value).__name__} {text if len(text) <= 60 else text[:57] + '...'}"
