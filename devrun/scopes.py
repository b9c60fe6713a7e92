"""Scopes: registries of other packages that answer a `type` beside devrun's own.

    type: mmcls.ImageClassifier        that name of that scope
    type: devrun.ResNet                devrun's own
    type: ResNet                       the default scope of the config at hand, then
                                       devrun's own

A config is written for one package, so within its default scope a name that both have
means theirs. Which scopes there are, and how their packages are imported and build, is
in `devrun.interop`, which is imported when a name with a dot is first looked up. As a
registry names its home, it is named here, and nowhere else below it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from importlib import import_module
from typing import Any, NamedTuple, Protocol, runtime_checkable

from devrun.construct import Buildable
from devrun.errors import ConfigError, UnknownNameError, nearest

_HOME = "devrun.interop"


@runtime_checkable
class Scope(Protocol):
    """The registries of one package. `kind` is the name of the registry of devrun's
    that is asked, such as `model` or `dataset`."""

    name: str

    def find(self, kind: str, name: str) -> Buildable | None:
        """What `type: name` selects; None where the scope has no such name."""
        ...

    def names(self, kind: str) -> Iterable[str]:
        """All that `find` knows."""
        ...

    def build(
        self,
        kind: str,
        name: str,
        target: Buildable,
        args: dict[str, Any],
        cfg: Mapping[str, Any],
    ) -> Any:
        """What `target` makes of `args`, parts in it built by the package's own code.

        `target` is what `find` has for `name`; `cfg` is the section of the config,
        for the places of errors.
        """
        ...


class Scoped(NamedTuple):
    """What a scope has for a `type`."""

    scope: Scope
    name: str
    target: Buildable


_default: ContextVar[Scope | None] = ContextVar("default_scope", default=None)


def attach(name: str) -> Scope:
    """The scope `name`; its package is imported the first time.

    Raises:
        ConfigError: no such scope, or its package is missing or does not fit.
    """
    home = import_module(_HOME)
    if name not in home.SCOPES:
        raise ConfigError(f"no scope {name!r}; {nearest(name, home.SCOPES)}")
    scope: Scope = home.attach(name)
    return scope


def scoped(kind: str, name: str) -> Scoped | None:
    """What a scope has for `type: name`; None where the name is not for one.

    Raises:
        UnknownNameError: the scope that `name` begins with does not have the rest.
    """
    first, dot, rest = name.partition(".")
    if not dot:
        scope = _default.get()
        target = None if scope is None else scope.find(kind, name)
        if scope is None or target is None:
            return None
        return Scoped(scope, name, target)
    if first not in import_module(_HOME).SCOPES:
        return None
    scope = attach(first)  # also before a dotted path is imported from its package
    if "." in rest:
        return None
    target = scope.find(kind, rest)
    if target is None:
        raise UnknownNameError(
            f"{first} has no {kind} {rest!r}; "
            f"{nearest(rest, scope.names(kind)) or 'it has none at all'}"
        )
    return Scoped(scope, rest, target)


@contextmanager
def within(name: str | None) -> Iterator[None]:
    """Inside, names without a scope are first looked up in the scope `name`."""
    if name in (None, "devrun"):
        yield
        return
    token = _default.set(attach(str(name)))
    try:
        yield
    finally:
        _default.reset(token)


def hint(kind: str, name: str, own: Iterable[str]) -> str:
    """The end of a message about an unknown `name`: where it was looked up, and the
    nearest there, or the package that has it."""
    scope = _default.get()
    known = [*own, *(scope.names(kind) if scope is not None else ())]
    searched = f" and not in {scope.name}" if scope is not None else ""
    elsewhere = import_module(_HOME).whose(kind, name)
    if elsewhere:
        return f"{searched}; {elsewhere}"
    return (
        f"{searched}; {nearest(name, known) or 'it is empty'} (a class of your "
        "own: name its module with --import, or list it in custom_imports)"
    )
