"""What a Python configuration may compute: operators, functions and methods.

Each is in a table; what is in none is refused by name. One rule for all: a call pays
for the size of its operands before it runs, and for that of its result. What can make
far more than it is given, such as `10**10**10` or `"a" * 10**9`, is bounded before.
"""

from __future__ import annotations

import copy
import operator
import re
import string
from collections.abc import Callable
from functools import partial
from typing import Any

from devrun.config.limits import MAX_BITS, Budget, TooMuch, weigh
from devrun.config.tree import ConfigDict, place

_SEQUENCES = (str, list, tuple)
_CONTAINERS = (*_SEQUENCES, set, dict, range)
_WIDEST = 1400
"""Characters of a number in a format of a width and precision below 1000."""


def call(budget: Budget, function: Callable[..., Any], *args: Any, **more: Any) -> Any:
    """Pay for the operands, do it, pay for the result.

    Raises:
        ValueError: too much work, or a number that no configuration holds.
    """
    budget.look(*args, *more.values())
    return budget.made(function(*args, **more))


def items(budget: Budget, value: Any) -> list[Any]:
    """The items of an iterable, as a list of their own."""
    if not isinstance(value, _CONTAINERS):
        raise TypeError(f"{type(value).__name__} cannot be iterated over")
    budget.rows(len(value))
    return list(value)


# Operators --------------------------------------------------------------------

_OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    "Add": operator.add, "Sub": operator.sub, "Mult": operator.mul,
    "Div": operator.truediv, "FloorDiv": operator.floordiv, "Mod": operator.mod,
    "Pow": operator.pow, "LShift": operator.lshift, "RShift": operator.rshift,
    "BitOr": operator.or_, "BitAnd": operator.and_, "BitXor": operator.xor,
}  # fmt: skip
_COMPARISONS: dict[str, Callable[[Any, Any], Any]] = {
    "Eq": operator.eq, "NotEq": operator.ne, "Lt": operator.lt, "LtE": operator.le,
    "Gt": operator.gt, "GtE": operator.ge, "Is": operator.is_,
    "IsNot": operator.is_not, "In": lambda left, right: left in right,
    "NotIn": lambda left, right: left not in right,
}  # fmt: skip


def binary(budget: Budget, name: str, left: Any, right: Any) -> Any:
    if name not in _OPERATORS:
        raise TypeError(f"the operator {name} is not known here")
    if name == "Mod" and isinstance(left, str):
        return _fill_percent(budget, left, right)
    if name == "BitOr" and isinstance(left, dict) and isinstance(right, dict):
        result = copy_dict(budget, left)
        update(budget, result, right)
        return result
    if isinstance(left, int) and isinstance(right, int):
        bits = {"Pow": left.bit_length() * abs(right), "LShift": right}.get(name, 0)
        if bits > MAX_BITS:
            raise TooMuch("the result is too large a number")
    for sequence, count in ((left, right), (right, left)):
        if isinstance(sequence, _SEQUENCES) and isinstance(count, int):
            size = len(sequence) * max(0, count)
            budget.text(size) if isinstance(sequence, str) else budget.rows(size)
    return call(budget, _OPERATORS[name], left, right)


def compare(budget: Budget, name: str, left: Any, right: Any) -> bool:
    if isinstance(right, (dict, set)) and name in ("In", "NotIn"):
        budget.look(left)
    else:
        budget.look(left, right)
        _pay_for_search(budget, right, left)
    return bool(_COMPARISONS[name](left, right))


def _pay_for_search(budget: Budget, text: Any, *wanted: Any) -> None:
    """Looking for texts in a text, at every place in the worst case."""
    if isinstance(text, str):
        sizes = (len(item) for item in wanted if isinstance(item, (str, tuple)))
        budget.charge(sum(len(text) * size >> 10 for size in sizes))


# Functions --------------------------------------------------------------------


def _round(value: Any, digits: Any = None) -> Any:
    if isinstance(digits, int) and abs(digits) > 400:
        raise TooMuch("rounded to more than 400 digits")
    return round(value, digits)


def _total(budget: Budget, values: Any, start: Any = 0) -> Any:
    for value in items(budget, values):
        start = binary(budget, "Add", start, value)
    return start


def deep_copy(budget: Budget, value: Any) -> Any:
    nodes, chars = weigh(value)
    budget.charge(2 * nodes + (chars >> 6))
    return copy.deepcopy(value)


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "abs": abs, "all": all, "any": any, "bool": bool, "float": float, "int": int,
    "len": len, "list": list, "max": max, "min": min, "range": range, "round": _round,
    "set": set, "sorted": sorted, "tuple": tuple,
    "enumerate": lambda values, start=0: list(enumerate(values, start)),
    "reversed": lambda values: list(values)[::-1],
    "zip": lambda *values: list(zip(*values, strict=False)),
}  # fmt: skip
"""Every function but `dict`, which the reader makes itself to keep the lines."""


def functions(budget: Budget) -> dict[str, Callable[..., Any]]:
    """What a file may call by name; each function pays from `budget`."""
    return {
        **{name: partial(call, budget, each) for name, each in FUNCTIONS.items()},
        "str": lambda value="": show(budget, value),
        "sum": partial(_total, budget),
    }


def module_functions(budget: Budget, module: str) -> dict[str, Callable[..., Any]]:
    """What an `import` may bring, for it does nothing but what is said here."""
    if module != "copy":
        return {}
    own = {"copy": partial(call, budget, copy.copy)}
    return {**own, "deepcopy": partial(deep_copy, budget)}


# Dicts ------------------------------------------------------------------------


def new_dict(budget: Budget, origin: Any = None) -> ConfigDict:
    budget.charge(4)
    result = ConfigDict()
    result._meta_.origin = origin
    return result


def put(
    budget: Budget, target: ConfigDict, key: Any, value: Any, origin: Any = None
) -> None:
    """`target[key] = value`, with the line it was written on."""
    budget.look(key)
    budget.charge(1)
    place(target, key, value, origin)


def copy_dict(budget: Budget, value: dict[Any, Any]) -> ConfigDict:
    result = new_dict(budget)
    update(budget, result, value)
    if isinstance(value, ConfigDict):
        result._meta_.origin = value._meta_.origin
    return result


def update(
    budget: Budget, target: ConfigDict, source: Any = (), /, **extra: Any
) -> None:
    origins = source._meta_.origins if isinstance(source, ConfigDict) else {}
    pairs = source.items() if isinstance(source, dict) else items(budget, source)
    budget.rows(2 * len(pairs))
    for key, value in list(pairs):
        put(budget, target, key, value, origins.get(key))
    for key, value in extra.items():
        put(budget, target, key, value)


# Text -------------------------------------------------------------------------

_TOO_WIDE = re.compile(r"\d{4}|[*{}]")
"""In a format: a width of four digits, in any script, or one from elsewhere."""
_PERCENT = re.compile(r"%(?:\([^()]*\))?([-+ #0-9.]*)[hlL]?[diouxXeEfFgGcrsa%]")


def show(budget: Budget, value: Any, conversion: str = "s", spec: str = "") -> str:
    """`f"{value!conversion:spec}"`"""
    if _TOO_WIDE.search(spec):
        raise TooMuch("a format wider than 999 characters")
    budget.look(value)
    made: Callable[[Any], str] = {"r": repr, "a": ascii}.get(conversion, str)
    # A dict shows as a plain one: its own repr hides what looks like a secret.
    if isinstance(value, (dict, list, tuple, set)):
        return budget.made(format(made(_plain_dicts(value)), spec))
    return budget.made(format(value if conversion == "s" else made(value), spec))


def _fill_percent(budget: Budget, text: str, values: Any) -> Any:
    """`text % values`"""
    at = count = 0
    while (at := text.find("%", at)) >= 0:
        found = _PERCENT.match(text, at)
        if found is None or _TOO_WIDE.search(found[1]):
            raise TooMuch("a format wider than 999 characters, or none that is known")
        budget.charge(1)
        at, count = found.end(), count + 1
    nodes, chars = weigh(values)
    times = 1 if isinstance(values, tuple) else count
    budget.text(len(text) + times * (chars + 4 * nodes))
    budget.charge(count * (_WIDEST >> 6))
    return budget.made(text % values)


def _fill_braces(budget: Budget, text: str, /, *args: Any, **options: Any) -> str:
    """`text.format(...)` by position or name, never into an attribute or item."""
    parts: list[str] = []
    position = 0
    for literal, name, spec, conversion in string.Formatter().parse(text):
        budget.charge(1)
        parts.append(literal)
        if name is None:
            continue
        if name == "":
            name, position = str(position), position + 1
        if "{" in (spec or "") or not (name.isdecimal() or name.isidentifier()):
            raise ValueError("only {}, {0} and {name} are filled by format(...)")
        given = args[int(name[:6])] if name.isdecimal() else options[name]
        parts.append(show(budget, given, conversion or "s", spec or ""))
    budget.text(sum(map(len, parts)))
    return "".join(parts)


def _plain_dicts(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain_dicts(child) for key, child in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)([_plain_dicts(child) for child in value])
    return value


# Methods ----------------------------------------------------------------------


def _join(budget: Budget, text: str, parts: Any) -> str:
    nodes, chars = weigh(items(budget, parts))
    budget.text(chars + len(text) * nodes)
    return text.join(parts)


def _replace(budget: Budget, text: str, old: str, new: str, count: int = -1) -> str:
    _pay_for_search(budget, text, old)
    budget.text(len(text) + text.count(old) * len(new))
    return text.replace(old, new, count)


def _set_default(
    budget: Budget, target: ConfigDict, key: Any, value: Any = None
) -> Any:
    budget.look(key)
    if key not in target:
        place(target, key, value, None)
    return dict.__getitem__(target, key)


def _sort(budget: Budget, target: list[Any], *, reverse: Any = False) -> None:
    target[:] = call(budget, sorted, target, reverse=bool(reverse))


_METHODS: dict[type, tuple[str, ...]] = {
    str: (
        "capitalize", "count", "endswith", "find", "index", "isdigit", "lower",
        "lstrip", "removeprefix", "removesuffix", "rsplit", "rstrip", "split",
        "splitlines", "startswith", "strip", "title", "upper",
    ),
    list: (
        "append", "clear", "copy", "count", "extend", "index", "insert", "pop",
        "remove", "reverse",
    ),
    tuple: ("count", "index"),
    set: ("add", "copy", "difference", "discard", "intersection", "union", "update"),
    dict: ("clear", "get", "items", "keys", "pop", "values"),
}  # fmt: skip
_OWN_METHODS: dict[type, dict[str, Callable[..., Any]]] = {
    str: {"format": _fill_braces, "join": _join, "replace": _replace},
    list: {"sort": _sort},
    dict: {"copy": copy_dict, "setdefault": _set_default, "update": update},
}
"""Methods that pay themselves."""
_AT_ONCE = (
    "add", "append", "clear", "discard", "extend", "get", "insert", "pop", "update",
)  # fmt: skip
"""Methods of containers that do not go through all that these hold."""


def method_of(budget: Budget, value: Any, name: str) -> Callable[..., Any] | None:
    """`value.name` as a function that pays; None if that is unknown."""
    kind = next((kind for kind in _METHODS if isinstance(value, kind)), None)
    if kind is None:
        return None
    own = _OWN_METHODS.get(kind, {}).get(name)
    if own is not None:
        return partial(own, budget, value)
    if name not in _METHODS[kind]:
        return None
    return partial(_call_method, budget, getattr(kind, name), value)


def _call_method(
    budget: Budget, method: Any, value: Any, /, *args: Any, **more: Any
) -> Any:
    if method.__name__ in _AT_ONCE:
        budget.charge(len(value) >> 9)
    else:
        budget.look(value)
        _pay_for_search(budget, value, *args)
    found = call(budget, partial(method, value), *args, **more)
    return list(found) if method.__name__ in ("items", "keys", "values") else found
