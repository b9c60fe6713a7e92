"""What a Python configuration may compute: operators, functions and methods.

Each is in a table; what is in none is refused by name. One rule for all: `call` pays
for what goes in and for what comes out. Where the result may be far larger than both,
as of `"a" * 10**9`, its size is checked before.
"""

from __future__ import annotations

import ast
import copy
import operator
import re
from collections.abc import Callable
from functools import partial
from typing import Any

from devrun.config.limits import MAX_BITS, Budget, TooMuch, weigh
from devrun.config.tree import ConfigDict, place, plain
from devrun.place import Origin

_SEQUENCES = (str, list, tuple)
_ITERABLE = (*_SEQUENCES, dict, range)


def call(budget: Budget, function: Callable[..., Any], *args: Any, **more: Any) -> Any:
    """Pay for the operands, do it, pay for the result.

    Raises:
        ValueError: too much work, or a number that no configuration holds.
    """
    budget.look(*args, *more.values())
    return budget.made(function(*args, **more))


def items(budget: Budget, value: Any) -> list[Any]:
    """The items of an iterable, as a list of their own."""
    if not isinstance(value, _ITERABLE):
        raise TypeError(f"{type(value).__name__} cannot be iterated over")
    budget.rows(len(value))
    return list(value)


# Operators --------------------------------------------------------------------

_OPERATORS: dict[type[ast.AST], Callable[..., Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul,
    ast.Div: operator.truediv, ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod,
    ast.Pow: operator.pow, ast.LShift: operator.lshift, ast.RShift: operator.rshift,
    ast.BitOr: operator.or_, ast.BitAnd: operator.and_, ast.BitXor: operator.xor,
    ast.Not: operator.not_, ast.USub: operator.neg, ast.UAdd: operator.pos,
    ast.Invert: operator.invert,
    ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt,
    ast.LtE: operator.le, ast.Gt: operator.gt, ast.GtE: operator.ge,
    ast.Is: operator.is_, ast.IsNot: operator.is_not,
}  # fmt: skip


def operate(budget: Budget, sign: ast.AST, *operands: Any) -> Any:
    """The value of an operator of one or two operands.

    Raises:
        TypeError: an operator that is not known here.
        ValueError: too much work, or too large a result.
    """
    left, right = operands[0], operands[-1]
    if isinstance(sign, (ast.In, ast.NotIn)):
        budget.search(right, left)
        return (left in right) is isinstance(sign, ast.In)
    if isinstance(sign, ast.Mod) and isinstance(left, str):
        raise TypeError("`%` fills no text in a configuration; use an f-string")
    if isinstance(left, dict) and isinstance(sign, ast.BitOr):
        raise TypeError("dicts are joined by {**one, **other}, not by `|`")
    if type(sign) not in _OPERATORS:
        raise TypeError(f"the operator {type(sign).__name__} is not known here")
    if isinstance(left, int) and isinstance(right, int):
        power = left.bit_length() * right if isinstance(sign, ast.Pow) else 0
        if (right if isinstance(sign, ast.LShift) else power) > MAX_BITS:
            raise TooMuch("the result is too large a number")
    elif isinstance(sign, ast.Mult):
        _check_product(budget, left, right)
        _check_product(budget, right, left)
    return call(budget, _OPERATORS[type(sign)], *operands)


def _check_product(budget: Budget, sequence: Any, count: Any) -> None:
    if isinstance(sequence, _SEQUENCES) and isinstance(count, int):
        size = len(sequence) * max(0, count)
        budget.text(size) if isinstance(sequence, str) else budget.rows(size)


# Functions --------------------------------------------------------------------


def _round(value: Any, digits: Any = None) -> Any:
    if isinstance(digits, int) and abs(digits) > 400:
        raise TooMuch("rounded to more than 400 digits")
    return round(value, digits)


def _total(budget: Budget, values: Any, start: Any = 0) -> Any:
    for value in items(budget, values):
        start = operate(budget, ast.Add(), start, value)
    return start


def deep_copy(budget: Budget, value: Any) -> Any:
    budget.charge(weigh(value) >> 4)
    return copy.deepcopy(value)


_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "abs": abs, "all": all, "any": any, "bool": bool, "float": float, "int": int,
    "len": len, "list": list, "max": max, "min": min, "range": range, "round": _round,
    "sorted": sorted, "tuple": tuple, "copy.copy": copy.copy,
    "enumerate": lambda values, start=0: list(enumerate(values, start)),
    "reversed": lambda values: list(values)[::-1],
    "zip": lambda *values: list(zip(*values)),
}  # fmt: skip
"""Every function but `dict`, which the reader makes itself to keep the lines."""


def functions(budget: Budget) -> dict[str, Callable[..., Any]]:
    """What a file may call by name; each function pays from `budget`."""
    return {
        **{name: partial(call, budget, each) for name, each in _FUNCTIONS.items()},
        "copy.deepcopy": partial(deep_copy, budget),
        "str": lambda value="": show(budget, value),
        "sum": partial(_total, budget),
    }


# Dicts ------------------------------------------------------------------------


def new_dict(budget: Budget, origin: Origin | None = None) -> ConfigDict:
    budget.charge(4)
    result = ConfigDict()
    result._meta_.origin = origin
    return result


def put(
    budget: Budget, target: ConfigDict, key: Any, value: Any, origin: Origin | None
) -> None:
    """`target[key] = value`, with the line it was written on."""
    budget.look(key)
    place(target, key, value, origin)


def copy_dict(budget: Budget, value: dict[Any, Any]) -> ConfigDict:
    meta = value._meta_ if isinstance(value, ConfigDict) else None
    result = new_dict(budget, meta.origin if meta else None)
    update(budget, result, value)
    return result


def update(
    budget: Budget, target: ConfigDict, source: Any = (), /, **extra: Any
) -> None:
    """`target.update(source, **extra)`, with the lines of `source`."""
    origins = source._meta_.origins if isinstance(source, ConfigDict) else {}
    pairs = source.items() if isinstance(source, dict) else items(budget, source)
    budget.rows(2 * len(pairs))
    for key, value in [*pairs, *extra.items()]:
        put(budget, target, key, value, origins.get(key))


# Text -------------------------------------------------------------------------

_WIDEST = 999
_BRACES = re.compile(r"\{\{|\}\}|\{\w*(?:![rsa])?(:[^{}]*)?\}")


def _pay_for_format(budget: Budget, text: str, formats: list[str], values: Any) -> None:
    if any(re.search(r"\d{4}|[{}]", each) for each in formats):
        raise TooMuch(f"a format wider than {_WIDEST} characters, or of a value")
    budget.text(len(text) + len(formats) * (_WIDEST + weigh(values)))


def show(budget: Budget, value: Any, conversion: str = "s", spec: str = "") -> str:
    """`f"{value!conversion:spec}"`"""
    _pay_for_format(budget, "", [spec], value)
    # plain dicts: a config's own hide what looks like a secret
    made: Callable[[Any], str] = {"r": repr, "a": ascii}.get(conversion, str)
    if conversion == "s" and not isinstance(value, _ITERABLE):
        return str(format(value, spec))
    return budget.made(format(made(plain(value)), spec))


def _fill_braces(budget: Budget, text: str, /, *args: Any, **options: Any) -> str:
    """`text.format(...)` by position or name, never into an attribute or item."""
    if re.search("[{}]", _BRACES.sub("", text)):
        raise ValueError("only {}, {0} and {name} are filled by format(...)")
    _pay_for_format(budget, text, _BRACES.findall(text), [args, options])
    filled = text.format(*plain(args), **plain(options))
    return budget.made(filled)


# Methods ----------------------------------------------------------------------

_METHODS: dict[type, tuple[str, ...]] = {
    str: (
        "endswith", "join", "lower", "lstrip", "replace", "rsplit", "rstrip", "split",
        "startswith", "strip", "upper",
    ),
    list: (
        "append", "copy", "count", "extend", "index", "insert", "pop", "remove",
        "reverse",
    ),
    dict: ("get", "items", "keys", "pop", "values"),
}  # fmt: skip
_OWN_METHODS: dict[tuple[type, str], Callable[..., Any]] = {
    (str, "format"): _fill_braces,
    (dict, "copy"): copy_dict,
    (dict, "update"): update,
}
"""Methods that pay themselves."""


def method_of(budget: Budget, value: Any, name: str) -> Callable[..., Any] | None:
    """`value.name` as a function that pays; None if that is unknown."""
    kind = next((kind for kind in _METHODS if isinstance(value, kind)), None)
    if kind is None:
        return None
    if (kind, name) in _OWN_METHODS:
        return partial(_OWN_METHODS[kind, name], budget, value)
    if name not in _METHODS[kind]:
        return None
    return partial(_call_method, budget, getattr(kind, name), value)


def _call_method(
    budget: Budget, method: Any, value: Any, /, *args: Any, **more: Any
) -> Any:
    budget.search(value, *args)
    found = budget.made(method(value, *args, **more))
    return list(found) if method.__name__ in ("items", "keys", "values") else found
