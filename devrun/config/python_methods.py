"""The methods of text, lists and dicts that a Python configuration may call."""

from __future__ import annotations

from typing import Any

from devrun.config import python_text as texts
from devrun.config.limits import Budget, check_key
from devrun.config.python_operations import (
    copy_dict,
    free,
    look,
    members,
    put,
    rows,
    shift,
    sort,
    update,
)
from devrun.config.python_text import Operation
from devrun.config.tree import ConfigDict


def _set_default(
    budget: Budget, target: ConfigDict, key: Any, default: Any = None
) -> Any:
    budget.look(key)
    if key not in target:
        put(budget, target, key, default)
    return dict.__getitem__(target, key)


def _look_key(budget: Budget, _: Any, *args: Any) -> None:
    budget.look(*args[:1])


def _add_cost_of_set(budget: Budget, value: Any, item: Any) -> None:
    budget.look(item)
    budget.charge(len(value) >> 3 if isinstance(item, tuple) else 0, 64)
    check_key(item, value)


def _sort_in_place(value: list[Any], *, reverse: Any = False) -> None:
    value.sort(reverse=bool(reverse))


_METHODS: dict[type, dict[str, Operation]] = {
    str: texts.METHODS,
    list: {
        "append": (shift, list.append),
        "clear": (free, list.clear),
        "copy": (rows, list.copy),
        "count": (look, list.count),
        "extend": (lambda budget, _, more: rows(budget, more), list.extend),
        "index": (look, list.index),
        "insert": (shift, list.insert),
        "pop": (shift, list.pop),
        "remove": (look, list.remove),
        "reverse": (rows, list.reverse),
        "sort": (sort, _sort_in_place),
    },
    tuple: {"count": (look, tuple.count), "index": (look, tuple.index)},
    set: {
        "add": (_add_cost_of_set, set.add),
        "copy": (rows, set.copy),
        "difference": (members, set.difference),
        "discard": (_look_key, set.discard),
        "intersection": (members, set.intersection),
        "union": (members, set.union),
        "update": (members, set.update),
    },
    dict: {
        "clear": (free, dict.clear),
        "copy": copy_dict,
        "get": (_look_key, dict.get),
        "items": (rows, lambda value: list(value.items())),
        "keys": (rows, list),
        "pop": (_look_key, dict.pop),
        "setdefault": _set_default,
        "update": update,
        "values": (rows, lambda value: list(value.values())),
    },
}


def method_of(value: Any, name: str) -> Operation | None:
    """What `value.name(...)` does; None if that is unknown."""
    found = (methods for kind, methods in _METHODS.items() if isinstance(value, kind))
    return next(found, {}).get(name)
