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

from devrun.config.limits import EACH, MAX_BITS, Budget, TooMuch, weigh
from devrun.config.tree import ConfigDict, place, plain
from devrun.place import Origin

_SEQUENCES = (str, list, tuple)
_ITERABLE = (*_SEQUENCES, dict, range)
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
_WIDEST = 999
_BRACES = re.compile(r"\{\{|\}\}|\{\w*(?:![rsa])?(:[^{}]*)?\}")


def _round(value: Any, digits: Any = None) -> Any:
    if isinstance(digits, int) and abs(digits) > 400:
        raise TooMuch("rounded to more than 400 digits")
    return round(value, digits)


_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "abs": abs, "all": all, "any": any, "bool": bool, "float": float, "int": int,
    "len": len, "list": list, "max": max, "min": min, "range": range, "round": _round,
    "sorted": sorted, "tuple": tuple, "copy.copy": copy.copy,
    "enumerate": lambda values, start=0: list(enumerate(values, start)),
    "reversed": lambda values: list(values)[::-1],
    "zip": lambda *values: list(zip(*values)),
}  # fmt: skip
"""Every function but `dict`, which the reader makes itself to keep the lines."""


class Operations:
    """The operations of one file, which `budget` pays.

    Raises:
        TypeError: of any of them, operands that it does not take.
        ValueError: too much work, or a result that no configuration holds.
    """

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self.functions: dict[str, Callable[..., Any]] = {
            **{name: partial(self.call, each) for name, each in _FUNCTIONS.items()},
            "copy.deepcopy": self.deep_copy,
            "str": lambda value="": self.show(value),
            "sum": self._total,
        }
        """What a file may call by name."""

    def call(self, function: Callable[..., Any], *args: Any, **more: Any) -> Any:
        """Pay for the operands, do it, pay for the result."""
        self._budget.look(*args, *more.values())
        return self._budget.made(function(*args, **more))

    def items(self, value: Any) -> list[Any]:
        """The items of an iterable, as a list of their own."""
        if not isinstance(value, _ITERABLE):
            raise TypeError(f"{type(value).__name__} cannot be iterated over")
        self._budget.room(EACH * len(value))
        return list(value)

    def operate(self, sign: ast.AST, *operands: Any) -> Any:
        """The value of an operator of one or two operands."""
        left, right = operands[0], operands[-1]
        if isinstance(sign, (ast.In, ast.NotIn)):
            self._budget.search(right, left)
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
            for sequence, count in ((left, right), (right, left)):
                if isinstance(sequence, _SEQUENCES) and isinstance(count, int):
                    each = 1 if isinstance(sequence, str) else EACH
                    self._budget.room(each * len(sequence) * max(0, count))
        return self.call(_OPERATORS[type(sign)], *operands)

    def _total(self, values: Any, start: Any = 0) -> Any:
        for value in self.items(values):
            start = self.operate(ast.Add(), start, value)
        return start

    def deep_copy(self, value: Any) -> Any:
        self._budget.charge(weigh(value) >> 4)
        return copy.deepcopy(value)

    def new_dict(self, origin: Origin | None = None) -> ConfigDict:
        self._budget.charge(4)
        result = ConfigDict()
        result._meta_.origin = origin
        return result

    def put(self, target: Any, key: Any, value: Any, origin: Origin | None) -> None:
        """`target[key] = value`, with the line it was written on."""
        self._budget.look(key)
        place(target, key, value, origin)

    def copy_dict(self, value: dict[Any, Any]) -> ConfigDict:
        meta = value._meta_ if isinstance(value, ConfigDict) else None
        result = self.new_dict(meta.origin if meta else None)
        self.update(result, value)
        return result

    def update(self, target: Any, source: Any = (), /, **extra: Any) -> None:
        """`target.update(source, **extra)`, with the lines of `source`."""
        origins = source._meta_.origins if isinstance(source, ConfigDict) else {}
        pairs = source.items() if isinstance(source, dict) else self.items(source)
        self._budget.room(2 * EACH * len(pairs))
        for key, value in [*pairs, *extra.items()]:
            self.put(target, key, value, origins.get(key))

    def show(self, value: Any, conversion: str = "s", spec: str = "") -> str:
        """`f"{value!conversion:spec}"`"""
        self._pay_for_format("", [spec], value)
        # plain dicts: a config's own hide what looks like a secret
        made: Callable[[Any], str] = {"r": repr, "a": ascii}.get(conversion, str)
        if conversion == "s" and not isinstance(value, _ITERABLE):
            return str(format(value, spec))
        return self._budget.made(format(made(plain(value)), spec))

    def fill_braces(self, text: str, /, *args: Any, **options: Any) -> str:
        """`text.format(...)` by position or name, never into an attribute or item."""
        if re.search("[{}]", _BRACES.sub("", text)):
            raise ValueError("only {}, {0} and {name} are filled by format(...)")
        self._pay_for_format(text, _BRACES.findall(text), [args, options])
        return self._budget.made(text.format(*plain(args), **plain(options)))

    def _pay_for_format(self, text: str, formats: list[str], values: Any) -> None:
        if any(re.search(r"\d{4}|[{}]", each) for each in formats):
            raise TooMuch(f"a format wider than {_WIDEST} characters, or of a value")
        self._budget.room(len(text) + len(formats) * (_WIDEST + weigh(values)))

    def method_of(self, value: Any, name: str) -> Callable[..., Any] | None:
        """`value.name` as a function that pays; None if that is unknown."""
        kind = next((kind for kind in _METHODS if isinstance(value, kind)), None)
        own: dict[Any, Callable[..., Any]] = {
            (str, "format"): self.fill_braces,
            (dict, "copy"): self.copy_dict,
            (dict, "update"): self.update,
        }
        if (kind, name) in own:
            return partial(own[kind, name], value)
        if kind is None or name not in _METHODS[kind]:
            return None
        return partial(self._call_method, getattr(kind, name), value)

    def _call_method(self, method: Any, value: Any, /, *args: Any, **more: Any) -> Any:
        self._budget.search(value, *args)
        made = self._budget.made(method(value, *args, **more))
        return list(made) if method.__name__ in ("items", "keys", "values") else made
