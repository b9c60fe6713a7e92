"""What a Python configuration may compute: operators, functions and methods.

Each is one row of a table: what it costs, by the size of its operands and of its
result, and what it does. The cost is paid before the work, so that `10**10**10` or
`"a" * 10**9` is an error and not a wait. What is in no table is refused by name.
"""

from __future__ import annotations

import copy
import operator
from collections.abc import Callable
from typing import Any

from devrun.config import python_text as texts
from devrun.config.limits import MAX_BITS, MAX_NODES, Budget, TooMuch, check_key, weigh
from devrun.config.python_text import Operation
from devrun.config.tree import ConfigDict, place

_SEQUENCES = (str, list, tuple)
_CONTAINERS = (*_SEQUENCES, set, dict, range)


def call(budget: Budget, operation: Operation, /, *args: Any, **options: Any) -> Any:
    """Pay, then do it; a function without a cost beside it pays step by step.

    Raises:
        ValueError: too much work, or a number that no configuration holds.
    """
    if callable(operation):
        return operation(budget, *args, **options)
    cost, function = operation
    cost(budget, *args, **options)
    value = function(*args, **options)
    if isinstance(value, complex):
        raise ValueError("the result is a complex number")
    if isinstance(value, int) and value.bit_length() > MAX_BITS:
        raise ValueError("the result is too large a number")
    return value


def items(budget: Budget, value: Any) -> list[Any]:
    """The items of an iterable, as a list of their own."""
    if not isinstance(value, _CONTAINERS):
        raise TypeError(f"{type(value).__name__} cannot be iterated over")
    budget.rows(len(value))
    return list(value)


def put(
    budget: Budget, target: ConfigDict, key: Any, value: Any, origin: Any = None
) -> None:
    """`target[key] = value`, with the line it was written on."""
    if not isinstance(key, str):
        budget.look(key)
        budget.charge(len(target) >> 3 if isinstance(key, tuple) else 0)
        check_key(key, target)
    budget.charge(1, 150)
    place(target, key, value, origin)


# Costs ------------------------------------------------------------------------


def free(budget: Budget, *_: Any, **__: Any) -> None:
    """Takes constant time; its cost was counted with the syntax node."""


def look(budget: Budget, *values: Any, **_: Any) -> None:
    budget.look(*values)


def rows(budget: Budget, *values: Any, **_: Any) -> None:
    """A new container of the items of all `values`."""
    for value in values:
        if not isinstance(value, _CONTAINERS):
            raise TypeError(f"{type(value).__name__} cannot be iterated over")
    budget.rows(sum(map(len, values)))


def _look_and_rows(budget: Budget, *values: Any, **_: Any) -> None:
    budget.look(*values)
    rows(budget, *values)


def shift(budget: Budget, value: Any, *_: Any) -> None:
    """What comes after the place moves."""
    budget.charge(len(value) >> 9, 16)


def sort(budget: Budget, value: Any, **_: Any) -> None:
    rows(budget, value)
    nodes, chars = weigh(value)
    rounds = len(value).bit_length()
    budget.charge((nodes * rounds >> 3) + (chars * rounds >> 8))


def _numbers(budget: Budget, *values: Any) -> None:
    bits = sum(v.bit_length() for v in values if isinstance(v, int))
    budget.charge(bits >> 8, 32 + (bits >> 2))


def members(budget: Budget, *values: Any) -> None:
    """A set of the items of all `values`."""
    _look_and_rows(budget, *values)
    tuples: list[Any] = []
    for value in values:
        for item in value:
            check_key(item, tuples)
            if isinstance(item, tuple):
                budget.charge(len(tuples) >> 3)
                tuples.append(item)


# Operators --------------------------------------------------------------------


def _add_cost(budget: Budget, left: Any, right: Any) -> None:
    if isinstance(left, str) and isinstance(right, str):
        budget.text(len(left) + len(right))
    elif isinstance(left, _SEQUENCES) and isinstance(right, _SEQUENCES):
        rows(budget, left, right)
    else:
        _numbers(budget, left, right)


def _multiply_cost(budget: Budget, left: Any, right: Any) -> None:
    _numbers(budget, left, right)
    for sequence, count in ((left, right), (right, left)):
        if isinstance(sequence, _SEQUENCES) and isinstance(count, int):
            size = len(sequence) * max(0, count)
            budget.text(size) if isinstance(sequence, str) else budget.rows(size)
    if isinstance(left, int) and isinstance(right, int):
        _check_bits(left.bit_length() + right.bit_length() - 1)


def _power_cost(budget: Budget, left: Any, right: Any) -> None:
    _numbers(budget, left, right)
    if isinstance(left, int) and isinstance(right, int):
        _check_bits(max(1, left.bit_length()) * abs(right))


def _shift_left_cost(budget: Budget, left: Any, right: Any) -> None:
    _numbers(budget, left, right)
    if isinstance(right, int):
        _check_bits(right)


def _check_bits(bits: int) -> None:
    if bits > MAX_BITS:
        raise TooMuch("the result is too large a number")


def _sets_cost(budget: Budget, left: Any, right: Any) -> None:
    if isinstance(left, set) and isinstance(right, set):
        members(budget, left, right)
    else:
        _numbers(budget, left, right)


_OPERATORS: dict[str, Operation] = {
    "Add": (_add_cost, operator.add),
    "Sub": (_sets_cost, operator.sub),
    "Mult": (_multiply_cost, operator.mul),
    "Div": (_numbers, operator.truediv),
    "FloorDiv": (_numbers, operator.floordiv),
    "Mod": (_numbers, operator.mod),
    "Pow": (_power_cost, operator.pow),
    "LShift": (_shift_left_cost, operator.lshift),
    "RShift": (_numbers, operator.rshift),
    "BitOr": (_sets_cost, operator.or_),
    "BitAnd": (_sets_cost, operator.and_),
    "BitXor": (_sets_cost, operator.xor),
}


def binary(budget: Budget, name: str, left: Any, right: Any) -> Any:
    if name not in _OPERATORS:
        raise TypeError(f"the operator {name} is not known here")
    if name == "Mod" and isinstance(left, str):
        return texts.fill_percent(budget, left, right)
    if name == "BitOr" and isinstance(left, dict) and isinstance(right, dict):
        result = copy_dict(budget, left)
        update(budget, result, right)
        return result
    return call(budget, _OPERATORS[name], left, right)


def _within_cost(budget: Budget, item: Any, holder: Any) -> None:
    if isinstance(holder, str) and isinstance(item, str):
        texts.search(budget, holder, item)
    elif isinstance(holder, (dict, set)):
        budget.look(item)
    else:
        budget.look(item, holder)


_COMPARISONS: dict[str, Operation] = {
    "Eq": (look, operator.eq),
    "NotEq": (look, operator.ne),
    "Lt": (look, operator.lt),
    "LtE": (look, operator.le),
    "Gt": (look, operator.gt),
    "GtE": (look, operator.ge),
    "Is": (free, operator.is_),
    "IsNot": (free, operator.is_not),
    "In": (_within_cost, lambda left, right: left in right),
    "NotIn": (_within_cost, lambda left, right: left not in right),
}


def compare(budget: Budget, name: str, left: Any, right: Any) -> bool:
    return bool(call(budget, _COMPARISONS[name], left, right))


# Functions --------------------------------------------------------------------


def _digits_cost(budget: Budget, value: Any = 0, base: Any = None) -> None:
    _numbers(budget, value)
    if isinstance(value, str):
        if len(value) > 1000:
            raise TooMuch("a number of more than 1000 digits")
        budget.charge(len(value) >> 6)


def _range_cost(budget: Budget, *bounds: Any) -> None:
    _numbers(budget, *bounds)
    try:
        length = len(range(*bounds))
    except OverflowError:
        length = MAX_NODES + 1
    if length > MAX_NODES:
        raise TooMuch("the result would be too large")


def _round_cost(budget: Budget, value: Any, digits: Any = None) -> None:
    _numbers(budget, value)
    budget.charge(2)
    if isinstance(digits, int) and abs(digits) > 400:
        raise TooMuch("rounded to more than 400 digits")


def _extreme(function: Callable[..., Any]) -> Operation:
    def cost(budget: Budget, *values: Any, **options: Any) -> None:
        if options.keys() - {"default"}:
            raise TypeError(f"{function.__name__} with key= is not known here")
        budget.look(*values)

    def apply(*values: Any, **options: Any) -> Any:
        given = values[0] if len(values) == 1 else values
        return function(given, **options)

    return cost, apply


def _sorted(values: Any, *, reverse: Any = False) -> list[Any]:
    return sorted(values, reverse=bool(reverse))


def _total(budget: Budget, values: Any, start: Any = 0) -> Any:
    total = start
    for value in items(budget, values):
        total = binary(budget, "Add", total, value)
    return total


def _string(budget: Budget, value: Any = "") -> str:
    return texts.show(budget, value)


def _zip_cost(budget: Budget, *values: Any) -> None:
    rows(budget, *values)
    budget.charge(len(values))


def _once(budget: Budget, *args: Any) -> None:
    budget.charge(1, 64)


FUNCTIONS: dict[str, Operation] = {
    "abs": (_numbers, abs),
    "all": (rows, all),
    "any": (rows, any),
    "bool": (_once, bool),
    "enumerate": (
        lambda budget, values, start=0: rows(budget, values, values),
        lambda values, start=0: list(enumerate(values, operator.index(start))),
    ),
    "float": (_digits_cost, float),
    "int": (
        _digits_cost,
        lambda value=0, base=None: int(value) if base is None else int(value, base),
    ),
    "len": (_once, len),
    "list": (rows, lambda values=(): list(values)),
    "max": _extreme(max),
    "min": _extreme(min),
    "range": (_range_cost, range),
    "reversed": (rows, lambda values: list(values)[::-1]),
    "round": (_round_cost, round),
    "set": (members, lambda values=(): set(values)),
    "sorted": (sort, _sorted),
    "str": _string,
    "sum": _total,
    "tuple": (rows, lambda values=(): tuple(values)),
    "zip": (_zip_cost, lambda *values: list(zip(*values, strict=False))),
}
"""Every function but `dict`, which the reader makes itself to keep the lines."""


def _whole_cost(budget: Budget, value: Any) -> None:
    nodes, chars = weigh(value)
    budget.charge(nodes, 200 * nodes + chars)


MODULES: dict[str, dict[str, Operation]] = {
    "copy": {"copy": (rows, copy.copy), "deepcopy": (_whole_cost, copy.deepcopy)}
}
"""What an `import` may bring, for it does nothing but what is said here."""


# Dicts ------------------------------------------------------------------------


def new_dict(budget: Budget, origin: Any = None) -> ConfigDict:
    budget.charge(2, 500)
    result = ConfigDict()
    result._meta_.origin = origin
    return result


def copy_dict(budget: Budget, value: dict[Any, Any]) -> ConfigDict:
    budget.rows(3 * len(value))
    result = new_dict(budget)
    dict.update(result, value)
    if isinstance(value, ConfigDict):
        result._meta_.origins.update(value._meta_.origins)
        result._meta_.origin = value._meta_.origin
    return result


def update(
    budget: Budget, target: ConfigDict, source: Any = (), /, **extra: Any
) -> None:
    origins = source._meta_.origins if isinstance(source, ConfigDict) else {}
    pairs = source.items() if isinstance(source, dict) else items(budget, source)
    budget.rows(2 * len(pairs))
    for key, value in list(pairs):
        put(budget, target, key, value, origins.get(key) if origins else None)
    for key, value in extra.items():
        put(budget, target, key, value)
