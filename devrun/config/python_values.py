"""What a Python configuration may compute: operators and functions, all bounded.

Every operation charges a `Budget`, and sizes are checked before the work is done, so
that `10**10**10` or `"a" * 10**9` is an error and not a wait.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable
from typing import Any

from devrun.config.limits import MAX_BITS, MAX_NODES, MAX_STRING, measure
from devrun.config.tree import ConfigDict, place

__all__ = [
    "FUNCTIONS",
    "Budget",
    "binary",
    "checked",
    "compare",
    "copy_dict",
    "items",
    "text",
    "update",
]

MAX_WORK = 600_000
_CONTAINERS = (list, tuple, set, dict, range)


class Budget:
    """The work one file may ask for, about one unit for each syntax node."""

    def __init__(self) -> None:
        self._left = MAX_WORK

    def charge(self, units: int) -> None:
        self._left -= units
        if self._left < 0:
            raise ValueError("more work than a configuration may take; write it out")

    def inspect(self, *values: Any) -> int:
        """Charge for going through all of `values`; their size in characters."""
        total = 0
        for value in values:
            if isinstance(value, (str, *_CONTAINERS)):
                size = measure(value)
                if size > MAX_STRING:
                    raise ValueError("a value too large to go through")
                total += size
        self.charge(total // 8)
        return total

    def room(self, items: int = 0, chars: int = 0) -> None:
        """Refuse a result of that size, or charge for it."""
        if items > MAX_NODES or chars > MAX_STRING:
            raise ValueError("the result would be too large")
        self.charge(items // 4 + chars // 64)


def checked(value: Any) -> Any:
    """A number as a result: no complex one, and no giant."""
    if isinstance(value, complex):
        raise ValueError("the result is a complex number")
    if isinstance(value, int) and value.bit_length() > MAX_BITS:
        raise ValueError("the result is too large a number")
    return value


def items(budget: Budget, value: Any) -> list[Any]:
    """The items of an iterable, as a list of their own."""
    if not isinstance(value, (str, *_CONTAINERS)):
        raise TypeError(f"{type(value).__name__} cannot be iterated over")
    budget.room(items=len(value))
    return list(value)


# Operators --------------------------------------------------------------------


def _add(budget: Budget, left: Any, right: Any) -> Any:
    _room_for_both(budget, left, right)
    return operator.add(left, right)


def _multiply(budget: Budget, left: Any, right: Any) -> Any:
    for sequence, count in ((left, right), (right, left)):
        if isinstance(sequence, (str, list, tuple)) and isinstance(count, int):
            size = len(sequence) * max(0, min(count, MAX_STRING + 1))
            chars = isinstance(sequence, str)
            budget.room(chars=size if chars else 0, items=0 if chars else size)
    _room_for_bits(left, right)
    return operator.mul(left, right)


def _power(budget: Budget, left: Any, right: Any) -> Any:
    if isinstance(left, int) and isinstance(right, int):
        if max(1, left.bit_length()) * abs(right) > MAX_BITS:
            raise ValueError("the result is too large a number")
    return left**right


def _shift_left(budget: Budget, left: Any, right: Any) -> Any:
    if isinstance(right, int) and right > MAX_BITS:
        raise ValueError("the result is too large a number")
    return operator.lshift(left, right)


def _remainder(budget: Budget, left: Any, right: Any) -> Any:
    if not isinstance(left, str):
        return operator.mod(left, right)
    if re.search(r"%[^%a-zA-Z]*(\*|[0-9]{4})", left):
        raise ValueError("a format wider than 999 characters")
    budget.room(chars=len(left) + left.count("%") * budget.inspect(right, left))
    return left % right


def _join_dicts(budget: Budget, left: Any, right: Any) -> Any:
    if not (isinstance(left, dict) and isinstance(right, dict)):
        budget.inspect(left, right)
        return operator.or_(left, right)
    result = copy_dict(left)
    update(budget, result, right)
    return result


def _on_sets(function: Callable[[Any, Any], Any]) -> Callable[[Budget, Any, Any], Any]:
    def apply(budget: Budget, left: Any, right: Any) -> Any:
        budget.inspect(left, right)
        return function(left, right)

    return apply


_OPERATORS: dict[str, Callable[[Budget, Any, Any], Any]] = {
    "Add": _add,
    "Sub": _on_sets(operator.sub),
    "Mult": _multiply,
    "Div": _on_sets(operator.truediv),
    "FloorDiv": _on_sets(operator.floordiv),
    "Mod": _remainder,
    "Pow": _power,
    "LShift": _shift_left,
    "RShift": _on_sets(operator.rshift),
    "BitOr": _join_dicts,
    "BitAnd": _on_sets(operator.and_),
    "BitXor": _on_sets(operator.xor),
}
_COMPARISONS: dict[str, Callable[[Any, Any], bool]] = {
    "Eq": operator.eq,
    "NotEq": operator.ne,
    "Lt": operator.lt,
    "LtE": operator.le,
    "Gt": operator.gt,
    "GtE": operator.ge,
    "Is": operator.is_,
    "IsNot": operator.is_not,
    "In": lambda left, right: left in right,
    "NotIn": lambda left, right: left not in right,
}


def binary(budget: Budget, name: str, left: Any, right: Any) -> Any:
    if name not in _OPERATORS:
        raise TypeError(f"the operator {name} is not known here")
    return checked(_OPERATORS[name](budget, left, right))


def compare(budget: Budget, name: str, left: Any, right: Any) -> bool:
    if name not in ("Is", "IsNot"):
        budget.inspect(left, right)
    return bool(_COMPARISONS[name](left, right))


def _room_for_both(budget: Budget, left: Any, right: Any) -> None:
    if isinstance(left, str) and isinstance(right, str):
        budget.room(chars=len(left) + len(right))
    elif isinstance(left, (list, tuple)) and isinstance(right, (list, tuple)):
        budget.room(items=len(left) + len(right))


def _room_for_bits(left: Any, right: Any) -> None:
    if isinstance(left, int) and isinstance(right, int):
        if left.bit_length() + right.bit_length() > MAX_BITS + 1:
            raise ValueError("the result is too large a number")


# Functions --------------------------------------------------------------------


def text(budget: Budget, value: Any, conversion: str = "s", spec: str = "") -> str:
    """`f"{value!conversion:spec}"`"""
    budget.inspect(value)
    if re.search(r"[0-9]{4}", spec):
        raise ValueError("a format wider than 999 characters")
    made: Callable[[Any], str] = repr if conversion == "r" else str
    made = ascii if conversion == "a" else made
    # A dict shows as a plain one: its own repr hides what looks like a secret.
    if isinstance(value, _CONTAINERS):
        return format(made(plain_dicts(value)), spec)
    return format(value if conversion == "s" else made(value), spec)


def plain_dicts(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: plain_dicts(child) for key, child in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)([plain_dicts(child) for child in value])
    return value


def copy_dict(value: dict[Any, Any]) -> ConfigDict:
    result = ConfigDict()
    dict.update(result, value)
    if isinstance(value, ConfigDict):
        result._meta_.origins.update(value._meta_.origins)
        result._meta_.origin = value._meta_.origin
    return result


def update(budget: Budget, target: ConfigDict, source: Any, **extra: Any) -> None:
    if not isinstance(source, dict):
        pairs = items(budget, source)
        budget.inspect(pairs)
        source = dict(pairs)
    budget.room(items=len(source) + len(extra))
    origins = source._meta_.origins if isinstance(source, ConfigDict) else {}
    for key, value in source.items():
        place(target, key, value, origins.get(key))
    for key, value in extra.items():
        place(target, key, value, None)


def _integer(budget: Budget, value: Any = 0, base: Any = None) -> int:
    if isinstance(value, str) and len(value) > 1000:
        raise ValueError("a number of more than 1000 digits")
    return int(value) if base is None else int(value, base)


def _decimal(budget: Budget, value: Any = 0.0) -> float:
    budget.inspect(value)
    return float(value)


def _string(budget: Budget, value: Any = "") -> str:
    return text(budget, value)


def _range(budget: Budget, *bounds: Any) -> range:
    result = range(*bounds)
    try:
        length = len(result)
    except OverflowError:
        length = MAX_NODES + 1
    budget.room(items=length)
    return result


def _total(budget: Budget, values: Any, start: Any = 0) -> Any:
    total = start
    for value in items(budget, values):
        total = binary(budget, "Add", total, value)
    return total


def _extreme(function: Callable[..., Any]) -> Callable[..., Any]:
    def apply(budget: Budget, *values: Any, **options: Any) -> Any:
        if options.keys() - {"default"}:
            raise TypeError(f"{function.__name__} with key= is not known here")
        budget.inspect(*values)
        given = values[0] if len(values) == 1 else values
        return function(items(budget, given), **options)

    return apply


def _sorted(budget: Budget, values: Any, *, reverse: Any = False) -> list[Any]:
    budget.inspect(values)
    return sorted(items(budget, values), reverse=bool(reverse))


def _round(budget: Budget, value: Any, digits: Any = None) -> Any:
    if isinstance(digits, int) and abs(digits) > 400:
        raise ValueError("rounded to more than 400 digits")
    return round(value, digits)


def _set(budget: Budget, values: Any = ()) -> set[Any]:
    budget.inspect(values)
    return set(items(budget, values))


def _zip(budget: Budget, *values: Any) -> list[Any]:
    budget.charge(len(values))
    return list(zip(*(items(budget, value) for value in values), strict=False))


def _enumerate(budget: Budget, values: Any, start: Any = 0) -> list[Any]:
    return list(enumerate(items(budget, values), operator.index(start)))


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "abs": lambda budget, value: abs(value),
    "all": lambda budget, values: all(items(budget, values)),
    "any": lambda budget, values: any(items(budget, values)),
    "bool": lambda budget, value=False: bool(value),
    "enumerate": _enumerate,
    "float": _decimal,
    "int": _integer,
    "len": lambda budget, value: len(value),
    "list": lambda budget, values=(): items(budget, values),
    "max": _extreme(max),
    "min": _extreme(min),
    "range": _range,
    "reversed": lambda budget, values: items(budget, values)[::-1],
    "round": _round,
    "set": _set,
    "sorted": _sorted,
    "str": _string,
    "sum": _total,
    "tuple": lambda budget, values=(): tuple(items(budget, values)),
    "zip": _zip,
}
"""Every function but `dict`, which the reader makes itself to keep the lines."""
