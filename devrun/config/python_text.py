"""Text in a Python configuration: formats and the methods of `str`, all bounded."""

from __future__ import annotations

import re
import string
from collections.abc import Callable
from typing import Any

from devrun.config.limits import MAX_STRING, Budget, TooMuch, weigh

Operation = tuple[Callable[..., object], Callable[..., Any]] | Callable[..., Any]
"""`(cost, function)`: `cost(budget, *operands)` pays or raises. Or one function of the
budget and the operands, which pays step by step."""

# A format is read as Python reads it, and what is not understood here is refused: a
# width in Arabic digits or behind a name counts like any other.
_SPEC = re.compile(
    r"(?:.?[<>=^])?[-+ ]?z?#?0?(?P<width>[0-9]{0,3})[_,]?"
    r"(?:\.(?P<precision>[0-9]{1,3}))?[a-zA-Z%]?",
    re.DOTALL,
)
_PERCENT = re.compile(
    r"%(?:\([^()]*\))?[#0\- +]*(?P<width>[0-9]{0,3})(?:\.(?P<precision>[0-9]{0,3}))?"
    r"[hlL]?[diouxXeEfFgGcrsa%]"
)
_LONGEST_FLOAT = 310


def show(budget: Budget, value: Any, conversion: str = "s", spec: str = "") -> str:
    """`f"{value!conversion:spec}"`"""
    found = _SPEC.fullmatch(spec)
    if found is None:
        raise TooMuch("a format wider than 999 characters, or none that is known")
    _pay_for_showing(budget, value, 1)
    budget.text(_width(found))
    made: Callable[[Any], str] = repr if conversion == "r" else str
    made = ascii if conversion == "a" else made
    # A dict shows as a plain one: its own repr hides what looks like a secret.
    if isinstance(value, (dict, list, tuple, set)):
        return _not_too_long(format(made(_plain_dicts(value)), spec))
    shown = value if conversion == "s" else made(value)
    return _not_too_long(format(shown, spec))


def fill_percent(budget: Budget, text: str, values: Any) -> str:
    """`text % values`"""
    at = count = width = 0
    while (at := text.find("%", at)) >= 0:
        found = _PERCENT.match(text, at)
        if found is None:
            raise TooMuch("a format wider than 999 characters, or none that is known")
        budget.charge(1)
        at, count, width = found.end(), count + 1, width + _width(found)
    budget.text(len(text) + width)
    _pay_for_showing(budget, values, 1 if isinstance(values, tuple) else count)
    return _not_too_long(text % values)


def fill_braces(budget: Budget, text: str, /, *args: Any, **options: Any) -> str:
    """`text.format(...)` by position or name, never into an attribute or item."""
    budget.text(len(text))
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


def _width(found: re.Match[str]) -> int:
    """The most characters that the format adds to a number or makes of it."""
    return int(found["width"] or 0) + int(found["precision"] or 0) + _LONGEST_FLOAT


def _pay_for_showing(budget: Budget, value: Any, times: int) -> None:
    nodes, chars = weigh(value)
    # One character may show as ten, beside others of four bytes each.
    budget.charge(times * (nodes + (chars >> 4)), times * (100 * nodes + 24 * chars))


def _not_too_long(text: str) -> str:
    if len(text) > MAX_STRING:
        raise TooMuch("the result would be too large")
    return text


def _plain_dicts(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain_dicts(child) for key, child in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)([_plain_dicts(child) for child in value])
    return value


# Costs of the methods ---------------------------------------------------------


def search(budget: Budget, text: str, *wanted: Any) -> None:
    """Looking for each of `wanted` in `text`, at every place in the worst case."""
    sizes = (weigh(item)[1] for item in wanted if not isinstance(item, int))
    budget.charge((len(text) >> 6) + sum(len(text) * size >> 10 for size in sizes))


def _changed(budget: Budget, text: str, *wanted: Any) -> None:
    """A text of that length; some letters become three in another case."""
    search(budget, text, *wanted)
    budget.text(3 * len(text))


def _joined(budget: Budget, text: str, parts: Any) -> None:
    nodes, chars = weigh(parts)
    if isinstance(parts, str):  # its characters are the parts
        nodes = len(parts)
    budget.charge(nodes)
    budget.text(chars + len(text) * nodes)


def _replaced(budget: Budget, text: str, old: Any, new: Any, *_: Any) -> None:
    search(budget, text, old)
    found = text.count(old) if isinstance(old, str) else 0
    budget.text(len(text) + found * weigh(new)[1])


def _split(budget: Budget, text: str, sep: Any = None, maxsplit: Any = -1) -> None:
    search(budget, text, sep)
    budget.charge(len(text) >> 4)
    if isinstance(sep, str) and sep:
        parts = text.count(sep) + 1
    else:
        parts = sum(map(str.isspace, text)) + 1
    budget.rows(parts)
    budget.text(len(text))


METHODS: dict[str, Operation] = {
    "capitalize": (_changed, str.capitalize),
    "count": (search, str.count),
    "endswith": (search, str.endswith),
    "find": (search, str.find),
    "format": fill_braces,
    "index": (search, str.index),
    "isdigit": (search, str.isdigit),
    "join": (_joined, str.join),
    "lower": (_changed, str.lower),
    "lstrip": (_changed, str.lstrip),
    "removeprefix": (_changed, str.removeprefix),
    "removesuffix": (_changed, str.removesuffix),
    "replace": (_replaced, str.replace),
    "rsplit": (_split, str.rsplit),
    "rstrip": (_changed, str.rstrip),
    "split": (_split, str.split),
    "splitlines": (_split, str.splitlines),
    "startswith": (search, str.startswith),
    "strip": (_changed, str.strip),
    "title": (_changed, str.title),
    "upper": (_changed, str.upper),
}
