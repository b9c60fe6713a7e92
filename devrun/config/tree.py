"""The tree a configuration is held in.

`ConfigDict` is a dict whose keys are also attributes; `ConfigList` is its list.
Each node has its key path and the line it was written on.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, NoReturn, TypeVar

from typing_extensions import Self

from devrun.config.origin import hint_for, redacted
from devrun.errors import UnknownNameError
from devrun.place import KeyPath, Origin, Place
from devrun.text import escape


class MissingKeyError(UnknownNameError, AttributeError):
    """No such key; an AttributeError too, so that `hasattr` and `getattr` work."""


@dataclass
class Meta:
    path: KeyPath | None = None
    origin: Origin | None = None
    origins: dict[Any, Origin] = field(default_factory=dict)

    def copy(self) -> Meta:
        return replace(self, origins=dict(self.origins))


Node = TypeVar("Node", bound="_Node")


def _adopting(method: Callable[..., Any]) -> Any:
    """The `method` of list, which takes in nodes."""

    @functools.wraps(method)
    def adopting(self: Any, *args: Any) -> Any:
        return method(self, *map(adopt, args))

    return adopting


class _Node:
    """What a dict and a list of a configuration share: their place, and copying."""

    __slots__ = ()
    _meta_: Meta
    _plain: ClassVar[Any]

    def __new__(cls, *_: Any, **__: Any) -> Self:
        self = super().__new__(cls)
        object.__setattr__(self, "_meta_", Meta())
        return self

    def copy(self) -> Self:
        """A shallow copy."""
        return _rebuild(type(self), self, self._meta_.copy())

    __copy__ = copy

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        items = copy.deepcopy(self._plain(self), memo)
        return _rebuild(type(self), items, self._meta_.copy())

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self._plain(self), self._meta_)

    def __repr__(self) -> str:
        return repr(redacted(self))

    __str__ = __repr__


class ConfigDict(_Node, dict):
    """A dict with attribute access; nested dicts and lists are converted on entry.

    Raises:
        MissingKeyError: a missing item or attribute (KeyError and AttributeError).
    """

    __slots__ = ("_meta_",)
    _plain = dict

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__()
        if args and isinstance(args[0], ConfigDict):
            object.__setattr__(self, "_meta_", args[0]._meta_.copy())
        for key, value in dict(*args, **kwargs).items():
            super().__setitem__(key, adopt(value))

    def __missing__(self, key: Any) -> NoReturn:
        hint = hint_for(key, self)
        shown = escape(repr(key), 80)
        here = Place(self._meta_.origin, self._meta_.path or ())
        raise MissingKeyError(f"{here}no key {shown}" + (f"; {hint}" if hint else ""))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self[name]

    def __setattr__(self, name: str, value: Any) -> None:
        self[name] = value

    def __delattr__(self, name: str) -> None:
        del self[name]

    def __setitem__(self, key: Any, value: Any) -> None:
        self._meta_.origins.pop(key, None)
        node, path = adopt(value), self._meta_.path
        if path is not None and isinstance(node, (ConfigDict, ConfigList)):
            if node._meta_.path is None:
                rehome(node, (*path, key))
        super().__setitem__(key, node)

    def __delitem__(self, key: Any) -> None:
        if key not in self:
            self.__missing__(key)
        self._meta_.origins.pop(key, None)
        super().__delitem__(key)

    def __ior__(self, other: Any) -> ConfigDict:  # type: ignore[misc]
        self.update(other)
        return self

    # dict's own would go past `__setitem__` and `__delitem__`
    update: Any = MutableMapping.update
    popitem: Any = MutableMapping.popitem
    clear: Any = MutableMapping.clear

    def pop(self, key: Any, *default: Any) -> Any:
        if key not in self and not default:
            self.__missing__(key)
        self._meta_.origins.pop(key, None)
        return super().pop(key, *default)

    def setdefault(self, key: Any, default: Any = None) -> Any:
        if key not in self:
            self[key] = default
        return self[key]

    def to_dict(self) -> dict[Any, Any]:
        """The same tree in plain dicts and lists."""
        result: dict[Any, Any] = plain(self)
        return result


class ConfigList(_Node, list):
    """A list inside a configuration."""

    __slots__ = ("_meta_",)
    _plain = list

    def __init__(self, items: Iterable[Any] = ()) -> None:
        super().__init__(adopt(item) for item in items)


for _name in ("__setitem__", "__iadd__", "append", "extend", "insert"):
    setattr(ConfigList, _name, _adopting(getattr(list, _name)))


def _rebuild(kind: type[Node], items: Any, meta: Meta) -> Node:
    node = kind.__new__(kind)
    fill: Any = dict.update if issubclass(kind, dict) else list.extend
    fill(node, items)
    object.__setattr__(node, "_meta_", meta)
    return node


def adopt(value: Any) -> Any:
    """`value` with its dicts and lists as config nodes; nodes stay who they are."""
    if isinstance(value, (ConfigDict, ConfigList)):
        return value
    if isinstance(value, dict):
        return ConfigDict(value)
    if isinstance(value, list):
        return ConfigList(value)
    if type(value) is tuple:
        return tuple(adopt(item) for item in value)
    return value


def children(node: Any) -> Iterator[tuple[Any, Any]]:
    """`(key or index, value)` of a container; nothing for anything else."""
    if isinstance(node, Mapping):
        yield from node.items()
    elif isinstance(node, (list, tuple)):
        yield from enumerate(node)


def rehome(node: Any, path: KeyPath, origin: Origin | None = None) -> None:
    """Set the key paths of `node` and everything below it."""
    if isinstance(node, (ConfigDict, ConfigList)):
        node._meta_.path = path
        if node._meta_.origin is None:
            node._meta_.origin = origin
        origin = node._meta_.origin
    for key, child in children(node):
        if isinstance(child, (dict, list, tuple)):
            own = node._meta_.origins.get(key) if isinstance(node, ConfigDict) else None
            rehome(child, (*path, key), own or origin)


def plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: plain(child) for key, child in value.items()}
    if isinstance(value, list):
        return [plain(child) for child in value]
    if type(value) is tuple:
        return tuple(plain(child) for child in value)
    return value


def place(node: ConfigDict, key: Any, value: Any, origin: Origin | None) -> None:
    """Set `key` as it is, unconverted, and remember where it was written.

    For the readers, whose results are copied into a clean tree afterwards.
    """
    dict.__setitem__(node, key, value)
    node._meta_.origins.pop(key, None)
    if origin is not None:
        node._meta_.origins[key] = origin


def origin_of(node: Any, key: Any = None) -> Origin | None:
    """The line of `key`, else of the node it would be in; None if not known."""
    if not isinstance(node, (ConfigDict, ConfigList)):
        return None
    meta = node._meta_
    if key is None:
        return meta.origin
    if key in meta.origins:
        return meta.origins[key]
    if isinstance(node, ConfigList):
        item = node[key] if isinstance(key, int) and key < len(node) else None
        return origin_of(item) or meta.origin
    return meta.origin if key not in node else None


def where(cfg: Any, key: Any = None) -> Place:
    """The place of `cfg`, or of its `key`; an empty one if it is unknown."""
    node = getattr(cfg, "__dict__", {}).get("_cfg_dict", cfg)
    if not isinstance(node, (ConfigDict, ConfigList)):
        return Place()
    path = node._meta_.path or ()
    return Place(origin_of(node, key), path if key is None else (*path, key))


def inside(cfg: Any, dotted: str) -> Any:
    """The value of a dotted key, or None."""
    for name in dotted.split("."):
        cfg = cfg.get(name) if hasattr(cfg, "get") else None
    return cfg
