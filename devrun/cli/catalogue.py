"""What there is, by kind, and what a key or a type is: `devrun list`, `explain`."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from devrun import registry
from devrun.config import Config
from devrun.config.described import all_keys, meanings
from devrun.config.schema import KEYS, Section, wanted
from devrun.config.shipped import config_path, shipped_configs
from devrun.config.tree import inside
from devrun.errors import ConfigError, UnknownNameError, nearest
from devrun.python38 import unsuffixed
from devrun.text import joined

REGISTRIES = {
    "models": registry.MODELS,
    "datasets": registry.DATASETS,
    "transforms": registry.TRANSFORMS,
    "losses": registry.LOSSES,
    "metrics": registry.METRICS,
    "optimizers": registry.OPTIMIZERS,
    "hooks": registry.HOOKS,
    "policies": registry.LR_SCHEDULERS,
    "runners": registry.RUNNERS,
}
_OF_HOOKS = ("hooks", "policies", "lr_config", "momentum_config", "optimizer_config")
"""Kinds and sections that docs/hooks.md is about."""
LONGEST = 200
"""Characters of an example."""
_POLICY = "LrUpdaterHook"
_CLASSES = (
    *(("runner", "EpochBasedRunner"), ("evaluation", "EvalHook")),
    *(("checkpoint_config", "CheckpointHook"), ("optimizer_config", "OptimizerHook")),
    *(("watchdog", "WatchdogHook"), ("timer_config", "IterTimerHook")),
)
_OF_SECTIONS = dict(_CLASSES)
"""Section of a config -> the class whose arguments its keys are."""


@dataclass(frozen=True)
class Entry:
    """One thing that a config may name."""

    kind: str
    name: str
    summary: str
    """One line of what it is."""
    source: str
    """The package that it is from."""


def catalogue(kind: str | None = None, pattern: str = "*") -> list[Entry]:
    """What there is of `kind`, or of all kinds, whose name has `pattern` in it."""
    pattern = pattern.lower()
    pattern = pattern if set("*?[") & set(pattern) else f"*{pattern}*"
    kinds = KINDS if kind is None else {kind: KINDS[kind]}
    return [
        Entry(kind, *row)
        for kind, rows in kinds.items()
        for row in sorted(rows(kind))
        if fnmatchcase(row[0].lower(), pattern)
    ]


Row = Iterator["tuple[str, str, str]"]


def _registered(kind: str) -> Row:
    for name, target in _targets(kind).items():
        yield name, _first_line(target), target.__module__.split(".")[0]


def _targets(kind: str) -> dict[str, Any]:
    held = REGISTRIES[kind]
    held.get("none of them")  # loads the built-in ones
    found = dict(held.module_dict)
    if kind == "hooks":
        policies = (_POLICY, "MomentumUpdaterHook")
        return {n: hook for n, hook in found.items() if not n.endswith(policies)}
    if kind == "policies":
        registry.HOOKS.get("none of them")
        for name, hook in registry.HOOKS.module_dict.items():
            if name.endswith(_POLICY) and name != _POLICY:
                found[unsuffixed(name, _POLICY)] = hook
    return found


def _devices(kind: str) -> Row:
    from devrun.devices.resolve import available_devices

    for row in available_devices():
        yield row.name, "here" if row.reason is None else f"not here: {row.reason}", ""


def _keys(kind: str) -> Row:
    for path, rule in all_keys():
        if "_dataloader." not in path:  # those of `data` again
            yield path, meanings().get(path) or f"takes {wanted(rule)}", "devrun"


def _configs(kind: str) -> Row:
    for name in shipped_configs():
        text = Path(config_path(name)).read_text(encoding="utf-8")
        comment = re.match(r"#\s*(.+)", text)
        yield name, comment[1] if comment else "", "devrun"


KINDS: dict[str, Callable[[str], Row]] = {
    **dict.fromkeys(REGISTRIES, _registered),
    "devices": _devices,
    "keys": _keys,
    "configs": _configs,
}
"""Kind -> gives its names, each with a line and the package that it is from."""


def explained(word: str) -> str:
    """What a key, a registered name or a dotted path is, in some lines.

    Raises:
        UnknownNameError: nothing is called so.
    """
    parts = _of_key(word)
    parts += [
        _of_type(f"{kind}: {word}, of {target.__module__}", target) + _page(kind)
        for kind in REGISTRIES
        if (target := _targets(kind).get(word)) is not None
    ]
    if not parts and "." in word and word.split(".")[0] not in KEYS:
        parts = _of_path(word)
    if not parts:
        keys = dict(all_keys())
        names = [*keys, *(n for kind in REGISTRIES for n in _targets(kind))]
        outer = word.rpartition(".")[0]
        argument = outer not in _OF_SECTIONS and _takes_type(keys.get(outer))
        hint = f"an argument of the type in {outer}? then devrun explain TYPE"
        hint = hint if argument else nearest(word, names)
        raise UnknownNameError(f"{word!r} is no key and no registered name; {hint}")
    return "\n\n".join(parts)


def _of_key(word: str) -> list[str]:
    rule = dict(all_keys()).get(word)
    section, _, name = word.partition(".")
    argument = _argument(section, name) if name else None
    if rule is None and argument is None:
        return []
    lines = [word if rule is None else f"{word}: takes {wanted(rule)}"]
    text, default = argument or ("", "none")
    meaning = meanings().get(re.sub(r"\w+_dataloader\.", "", word)) or text
    lines.append(meaning or f"part of {section}: {meanings().get(section, '')}")
    lines.append(f"default: {default}")
    if isinstance(rule, Section):
        lines.append(f"keys: {', '.join(rule.keys)}")
    if word in _OF_SECTIONS:
        lines.append(f"its keys are arguments: devrun explain {_OF_SECTIONS[word]}")
    return ["\n".join([*lines, *_example(word)]) + _page(section)]


def _takes_type(rule: str | Section | None) -> bool:
    return rule.open if isinstance(rule, Section) else "dict" in (rule or "")


def _page(topic: str) -> str:
    """Where more is said of a kind, or of a section of a config."""
    parts = "own-parts" if topic in REGISTRIES else "configs"
    return f"\npage: docs/{'hooks' if topic in _OF_HOOKS else parts}.md"


def _argument(section: str, name: str) -> tuple[str, str] | None:
    """What the class of a section says of an argument, and its default."""
    kind = _OF_SECTIONS.get(section, "")
    target = (registry.RUNNERS if section == "runner" else registry.HOOKS).get(kind)
    parameter = target and inspect.signature(target).parameters.get(name)
    if not (target and parameter):
        return None
    default = parameter.default
    shown = "none" if default is parameter.empty else repr(default)
    pattern = rf"^ +(?:\w+, )*{name}(?:, \w+)*: ((?:.|\n)*?)(?=^ +[\w, ]+: |\n\n|\Z)"
    text = re.search(pattern, inspect.getdoc(target) or "", re.MULTILINE)
    return joined(text[1]) if text else "", shown


def _example(word: str) -> list[str]:
    """How a shipped config sets the key."""
    for name in shipped_configs():
        value = inside(
            Config.fromfile(config_path(name), import_custom_modules=False), word
        )
        if value is not None and len(repr(value)) < LONGEST:
            return [f"example: {word}={value!r} ({name})"]
    return []


def _of_type(title: str, target: Any) -> str:
    try:
        written = re.sub(r"(: |-> )'([^']*)'", r"\1\2", str(inspect.signature(target)))
        signature = f"{target.__name__}{written}"
    except (ValueError, TypeError):  # one written in C
        signature = target.__name__
    return "\n".join([title, signature, inspect.getdoc(target) or ""]).rstrip()


def _of_path(word: str) -> list[str]:
    """A dotted path that some registry takes."""
    for kind, held in REGISTRIES.items():
        try:
            return [_of_type(f"{kind}: {word}", held.resolve(word))]
        except ConfigError as error:
            refusal = error
    raise refusal


def _first_line(target: Any) -> str:
    lines = (target.__doc__ or target.__name__).strip().splitlines()
    return re.sub(r"[`:]+(\w+:`)?", "", lines[0])
