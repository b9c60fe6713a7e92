"""Reading a section key by key, so that what is left over can be refused by name."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, NoReturn

from devrun.config.origin import config_error, hint_for, shown_value
from devrun.config.tree import ConfigDict, ConfigList, origin_of, place
from devrun.errors import ConfigTypeError
from devrun.place import KeyPath, Origin


@dataclass
class Section:
    """One dict of the configuration; its keys are taken out one by one."""

    node: ConfigDict
    origin: Origin | None
    known: list[str] = field(default_factory=list)

    def pop(self, key: str, default: Any = None) -> Any:
        """Its value, which is then no longer left over."""
        self.known.append(key)
        return self.node.pop(key, default)

    def drop(self, *keys: str) -> None:
        """Leave out what means nothing here."""
        for key in keys:
            self.pop(key)

    def without(self, **reasons: str) -> None:
        """Leave out keys that ask for nothing; devrun has no word for others."""
        for key, why in reasons.items():
            if self.node.get(key):
                refuse_value(self.node, key, why)
            self.pop(key)

    def move(self, into: ConfigDict, *same: str, **renamed: str) -> None:
        """Put the values that are there into `into`, with where they were written.

        Args:
            renamed: a key here and its name there.
        """
        for key, name in {**dict(zip(same, same)), **renamed}.items():
            self.known.append(key)
            if key in self.node:
                origin = origin_of(self.node, key)
                place(into, name, self.node.pop(key), origin)

    def section(self, key: str) -> Section | None:
        """The dict at `key`; None if there is none."""
        self.known.append(key)
        return section_of(self.node, key)

    def done(self) -> None:
        """Refuse what nobody took."""
        for key in self.node:
            hint = hint_for(key, self.known)
            refuse(self.node, key, f"devrun does not translate this key; {hint}")


@dataclass
class Translation:
    """What is still to be translated, and what has been."""

    tree: ConfigDict
    split: str = "val"
    out: ConfigDict = field(default_factory=ConfigDict)
    scope: str = "mmengine"
    by_epoch: bool = True
    unused: list[str] = field(default_factory=list)
    """Keys that change nothing here, for one warning."""
    schedules: bool = True
    """Whether the hook that steps the schedulers is there."""

    def __post_init__(self) -> None:
        self.out._meta_.path = ()
        self.out._meta_.origin = self.tree._meta_.origin

    def section(self, key: str) -> Section | None:
        """The dict at the top-level `key`, taken out; None if there is none."""
        return section_of(self.tree, key)

    def put(self, key: str, value: Any, origin: Origin | None) -> None:
        place(self.out, key, value, origin)

    def within(self, key: str, origin: Origin | None) -> ConfigDict:
        """The section `key` of the result, made if it is not there."""
        if key not in self.out:
            self.put(key, new(origin, (key,)), origin)
        made: ConfigDict = self.out[key]
        return made

    def scoped(self, node: Any) -> Any:
        """`node` with its `type` as `scope.Name`."""
        kind = node.get("type") if isinstance(node, ConfigDict) else None
        scope = node.get("_scope_", self.scope) if kind is not None else ""
        if isinstance(kind, str) and "." not in kind:
            place(node, "type", f"{scope}.{kind}", origin_of(node, "type"))
        return node


def new(origin: Origin | None, path: KeyPath = ()) -> ConfigDict:
    """An empty section that is said to come from `origin`."""
    node = ConfigDict()
    node._meta_.origin, node._meta_.path = origin, path
    return node


def listed(items: Iterable[Any], origin: Origin | None, path: KeyPath) -> ConfigList:
    """The same for a list."""
    node = ConfigList(items)
    node._meta_.origin, node._meta_.path = origin, path
    return node


def section_of(node: ConfigDict, key: str) -> Section | None:
    origin = origin_of(node, key)
    value = node.get(key)
    if value is not None and not isinstance(value, ConfigDict):
        shown = shown_value(value, (key,))
        refuse(node, key, f"takes a dict, not {shown}", ConfigTypeError)
    node.pop(key, None)
    return None if value is None else Section(value, origin)


def refuse(
    node: ConfigDict, key: Any, reason: str, kind: type[Any] | None = None
) -> NoReturn:
    """Raise the error about `key` of `node`, with its place."""
    path = (*(node._meta_.path or ()), *(() if key is None else (key,)))
    origin = origin_of(node, key)
    raise config_error(reason, origin, path, *([] if kind is None else [kind]))


def refuse_value(node: ConfigDict, key: str, why: str) -> NoReturn:
    """Raise the error about a value that devrun has no word for."""
    shown = shown_value(node[key], (key,))
    refuse(node, key, f"devrun does not translate {shown}: {why}")
