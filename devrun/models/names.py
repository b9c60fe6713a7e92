"""Patterns over the names of a model's parameters and modules, and `freeze`."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from fnmatch import translate
from typing import Any

from torch import nn
from torch.nn.modules.batchnorm import _NormBase

from devrun.config.origin import describe
from devrun.config.revisions import revisions
from devrun.errors import ConfigError, ConfigTypeError, nearest
from devrun.python38 import unprefixed

REGEX = "re:"


def matching(
    key: str, patterns: Any, names: Iterable[str]
) -> dict[str, Callable[[str], bool]]:
    """For each of `patterns`, whether it matches a name or what the name is part of.

    A pattern is a glob (`*` matches dots too) over a whole dotted name or its beginning
    up to a dot, so that `backbone.layer1` has all that is in it; after `re:` it is a
    regular expression that is searched for in the whole name.

    Args:
        key: of the config, for messages.
        names: of which each pattern must match one.

    Raises:
        ConfigTypeError: (a TypeError) they are no list of text.
        ConfigError: a pattern is no expression, or matches nothing.
    """
    listed = [patterns] if isinstance(patterns, str) else patterns
    if not (isinstance(listed, (list, tuple)) and listed) or not all(
        isinstance(pattern, str) and pattern for pattern in listed
    ):
        raise ConfigTypeError.of(
            key,
            f"takes a list of patterns, such as backbone.*, not {describe(patterns)}",
        )
    known = list(names)
    found = {}
    for pattern in listed:
        found[pattern] = matches = _matcher(key, pattern)
        if not any(map(matches, known)):
            ends = [end for name in known for end in _beginnings(name)]
            hint = nearest(pattern.rstrip("*."), dict.fromkeys(ends))
            raise ConfigError.of(key, f"has {pattern!r}, which matches nothing; {hint}")
    return found


def matching_modules(
    key: str, patterns: Any, model: nn.Module
) -> list[tuple[str, nn.Module]]:
    """(name, module) of those that `patterns` match, but none that is in another."""
    modules = dict(model.named_modules())
    matches = matching(key, patterns, [name for name in modules if name])
    found: list[tuple[str, nn.Module]] = []
    for name, module in modules.items():
        inside = any(name.startswith(f"{outer}.") for outer, _ in found)
        if name and not inside and any(fits(name) for fits in matches.values()):
            found.append((name, module))
    return found


def freeze(model: nn.Module, patterns: Any) -> list[nn.Module]:
    """Take the parameters that `patterns` match out of training; the norms in it.

    Raises:
        ConfigError: a pattern matches nothing, or nothing is left to train.
    """
    parameters = dict(model.named_parameters(remove_duplicate=False))
    modules = {name: module for name, module in model.named_modules() if name}
    patterns = matching("freeze", patterns, [*parameters, *modules]).values()
    for name, parameter in parameters.items():
        if any(matches(name) for matches in patterns):
            parameter.requires_grad_(False)
    if not any(parameter.requires_grad for parameter in parameters.values()):
        raise ConfigError.of(
            "freeze", f"leaves no parameter of {type(model).__name__} to train"
        )
    return [
        module
        for name, module in modules.items()
        if isinstance(module, _NormBase) and any(matches(name) for matches in patterns)
    ]


def frozen_norms(model: nn.Module) -> list[nn.Module]:
    """Batch and instance norms whose own parameters are all frozen.

    They and those in frozen modules must stay in evaluation mode, so that their
    statistics stay as they are too.
    """
    return [
        module
        for module in model.modules()
        if isinstance(module, _NormBase)
        and any(True for _ in module.parameters(recurse=False))
        and not any(p.requires_grad for p in module.parameters(recurse=False))
    ]


def _matcher(key: str, pattern: str) -> Callable[[str], bool]:
    if not pattern.startswith(REGEX):
        glob = re.compile(translate(pattern))
        return lambda name: any(map(glob.match, _beginnings(name)))
    try:
        ((compiled, _),) = revisions([[unprefixed(pattern, REGEX), ""]])
    except ValueError as error:
        raise ConfigError.of(
            key, f"has a pattern that cannot be used: {error}"
        ) from None
    return lambda name: compiled.search(name) is not None


def _beginnings(name: str) -> Iterator[str]:
    """`a`, `a.b` and `a.b.c` of `a.b.c`."""
    parts = name.split(".")
    return (".".join(parts[:count]) for count in range(1, len(parts) + 1))
