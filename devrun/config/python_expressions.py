"""The value of an expression in a Python configuration, from its syntax tree.

Nothing is compiled or executed: each kind of node below is one method, and a kind
without a method is refused by name.
"""

from __future__ import annotations

import ast
import copy
import itertools
import re
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

from devrun.config import python_operations as operations
from devrun.config.limits import MAX_BITS, Budget, TooMuch
from devrun.config.origin import config_error, describe, hint_for
from devrun.config.template import MARKER
from devrun.config.tree import ConfigDict, origin_of
from devrun.errors import ConfigError
from devrun.place import Origin
from devrun.text import escape

TRUST = "use --trust-config to run this file as Python code"
WRONG = (
    ArithmeticError, AttributeError, LookupError, MemoryError, RecursionError,
    TypeError, ValueError,
)  # fmt: skip
"""What an operation on the values of a configuration can raise."""

_SCALARS = (str, bool, int, float)
_CONVERSIONS = {-1: "s", 115: "s", 114: "r", 97: "a"}
_ALIKE = {"generatorexp": "listcomp"}
_SHOWN = 500
"""Nodes of an expression that a message repeats."""


class Expressions:
    """Evaluates expressions over `names`, the variables of the file.

    `fill` replaces the markers of templates; `base` gives the value that a dotted
    path has in the merged bases, and "" all of them.
    """

    def __init__(
        self,
        file: str,
        budget: Budget,
        fill: Callable[[str], Any],
        base: Callable[[str, Origin], Any],
    ) -> None:
        self.file = file
        self.names: dict[str, Any] = {}
        self.target: list[Any] = []
        self.budget = budget
        self.functions = operations.functions(budget)
        self._fill = fill
        self.base = base

    def origin(self, node: ast.AST) -> Origin:
        return Origin(self.file, getattr(node, "lineno", 0))

    def fail(self, node: ast.AST, reason: str) -> NoReturn:
        raise config_error(reason, self.origin(node), self.target)

    def refuse(self, node: ast.AST, what: str) -> NoReturn:
        self.fail(
            node, f"{what} is not read in a configuration; write the value, or {TRUST}"
        )

    def value(self, node: ast.expr) -> Any:
        """The value of `node`.

        Raises:
            ConfigError: anything but plain values and what is made of them.
        """
        kind = type(node).__name__.lower()
        method = getattr(self, f"_value_of_{_ALIKE.get(kind, kind)}", None)
        if method is None:
            self.refuse(node, f"{kind_of(node)} ")
        try:
            self.budget.charge()
            return method(node)
        except ConfigError:
            raise
        except RecursionError:
            self.fail(node, "nested too deeply; write it in steps")
        except WRONG as error:
            text = str(error) or type(error).__name__
            if isinstance(error, KeyError):
                text = f"no key {escape(text, 80)}"
            self.fail(node, f"{escape(text, 160)} (in `{source_of(node)}`)")

    def assign(self, target: ast.expr, value: Any) -> None:
        """Bind `value` to a name, an unpacked row of targets or a subscript."""
        if isinstance(target, ast.Name):
            self.names[target.id] = value
        elif isinstance(target, (ast.Tuple, ast.List)):
            given = operations.items(self.budget, value)
            if len(given) != len(target.elts):
                self.fail(target, f"{len(target.elts)} names for {len(given)} values")
            for part, item in zip(target.elts, given, strict=True):
                self.assign(part, item)
        elif isinstance(target, ast.Subscript) or in_base(target):
            holder, key = holder_of(self, target)
            if in_base(target):  # from then on it is the bases' own
                value = operations.deep_copy(self.budget, value)
            if isinstance(holder, ConfigDict):
                operations.put(self.budget, holder, key, value, self.origin(target))
            elif isinstance(holder, list) and isinstance(key, int):
                holder[key] = value
            else:
                self.fail(target, f"{describe(holder)} takes no value at that place")
        else:
            self.refuse(target, f"an assignment to {kind_of(target)}")

    # One method for each kind of node -----------------------------------------

    def _value_of_constant(self, node: ast.Constant) -> Any:
        value = node.value
        if isinstance(value, str):
            self.budget.charge(len(value) >> 6)
            return self._fill(value)
        if isinstance(value, int) and value.bit_length() > MAX_BITS:
            raise TooMuch(f"{describe(value)}; at most {MAX_BITS} bits are taken")
        if value is None or isinstance(value, _SCALARS):
            return value
        self.refuse(node, f"a {type(value).__name__} value")

    def _value_of_name(self, node: ast.Name) -> Any:
        name = node.id
        if name in self.names:
            return self.names[name]
        filled = self._fill(name)
        if filled is not name:
            return filled
        if name == "dict" or name in self.functions:
            self.refuse(node, f"the function {name} as a value")
        hint = hint_for(name, self.names) if self.names else ""
        self.fail(
            node, f"the name {name!r} is not defined above" + f"; {hint}" * bool(hint)
        )

    def _value_of_list(self, node: ast.List) -> list[Any]:
        return list(self._elements(node.elts))

    def _value_of_tuple(self, node: ast.Tuple) -> tuple[Any, ...]:
        return tuple(self._elements(node.elts))

    def _value_of_set(self, node: ast.Set) -> Any:
        return operations.call(self.budget, set, list(self._elements(node.elts)))

    def _elements(self, nodes: list[ast.expr]) -> Iterator[Any]:
        for node in nodes:
            if isinstance(node, ast.Starred):
                yield from operations.items(self.budget, self.value(node.value))
            else:
                yield self.value(node)

    def _value_of_dict(self, node: ast.Dict) -> ConfigDict:
        given = [
            (key and self.origin(key), key and self.value(key), self.value(value))
            for key, value in zip(node.keys, node.values, strict=True)
        ]
        return self._dict(node, given)

    def _dict(self, node: ast.expr, given: list[tuple[Any, Any, Any]]) -> ConfigDict:
        """Of `(where, key, value)`; without a place, of a dict to take over."""
        result = operations.new_dict(self.budget, self.origin(node))
        written: set[Any] = set()
        for origin, key, value in given:
            if origin is None:
                operations.update(self.budget, result, value)
                continue
            self.budget.look(key)
            if key in written:
                reason = f"the key {describe(key)} is given twice"
                raise config_error(reason, origin, self.target)
            operations.put(self.budget, result, key, value, origin)
            written.add(key)
        return result

    def _value_of_call(self, node: ast.Call) -> Any:
        function = node.func
        if isinstance(function, ast.Name) and function.id not in self.names:
            if function.id == "dict":
                return self._call_dict(node)
            if function.id in self.functions:
                return self._call(self.functions[function.id], node)
        elif isinstance(function, ast.Attribute):
            owner = function.value
            module = owner.id if isinstance(owner, ast.Name) else ""
            name = f"{module}.{function.attr}"
            if name in self.functions and module not in self.names:
                return self._call(self.functions[name], node)
            receiver = self.value(owner)
            method = operations.method_of(self.budget, receiver, function.attr)
            if method is not None:
                return self._call(method, node)
        self.refuse(node, f"the call {source_of(function)}(...)")

    def _call(self, function: Callable[..., Any], node: ast.Call) -> Any:
        options: dict[str, Any] = {}
        for keyword in node.keywords:
            given = self.value(keyword.value)
            if keyword.arg is None:
                operations.items(self.budget, given)
            options.update({keyword.arg: given} if keyword.arg else given)
        return function(*self._elements(node.args), **options)

    def _call_dict(self, node: ast.Call) -> ConfigDict:
        if len(node.args) > 1:
            self.fail(node, "dict(...) takes one positional argument at most")
        given: list[tuple[Any, Any, Any]] = [
            (None, None, argument) for argument in self._elements(node.args)
        ]
        for keyword in node.keywords:
            value, here = self.value(keyword.value), self.origin(keyword)
            if keyword.arg is not None:
                given.append((here, keyword.arg, value))
            elif isinstance(value, dict):
                for key in operations.items(self.budget, value):
                    line = origin_of(value, key) or here
                    given.append((line, key, dict.__getitem__(value, key)))
            else:
                self.fail(keyword, f"`**` takes a dict, not {describe(value)}")
        return self._dict(node, given)

    def _value_of_attribute(self, node: ast.Attribute) -> Any:
        path: list[str] = []
        owner: ast.expr = node
        while isinstance(owner, ast.Attribute):
            path.append(owner.attr)
            owner = owner.value
        if _is_base(owner):
            return self.base(".".join(reversed(path)), self.origin(node))
        self.refuse(node, f"the attribute {source_of(node)}")

    def _value_of_subscript(self, node: ast.Subscript) -> Any:
        holder, key = holder_of(self, node)
        if isinstance(holder, dict):
            if key not in holder:
                self.fail(node, f"no key {describe(key)}; {hint_for(key, holder)}")
            return dict.__getitem__(holder, key)
        if not isinstance(holder, (str, list, tuple, range)):
            self.fail(node, f"{describe(holder)} has no items")
        found = holder[key]
        return self.budget.made(found) if isinstance(key, slice) else found

    def _value_of_slice(self, node: ast.Slice) -> slice:
        parts = (node.lower, node.upper, node.step)
        return slice(*(None if part is None else self.value(part) for part in parts))

    def _value_of_binop(self, node: ast.BinOp) -> Any:
        left, right = self.value(node.left), self.value(node.right)
        return operations.binary(self.budget, type(node.op).__name__, left, right)

    def _value_of_unaryop(self, node: ast.UnaryOp) -> Any:
        value = self.value(node.operand)
        if isinstance(node.op, ast.Not):
            return not value
        if isinstance(node.op, ast.USub):
            return -value
        return ~value if isinstance(node.op, ast.Invert) else +value

    def _value_of_boolop(self, node: ast.BoolOp) -> Any:
        stop_at = isinstance(node.op, ast.Or)
        value: Any = None
        for part in node.values:
            value = self.value(part)
            if bool(value) is stop_at:
                break
        return value

    def _value_of_compare(self, node: ast.Compare) -> bool:
        left = self.value(node.left)
        for operator, right_node in zip(node.ops, node.comparators, strict=True):
            right = self.value(right_node)
            name = type(operator).__name__
            if not operations.compare(self.budget, name, left, right):
                return False
            left = right
        return True

    def _value_of_ifexp(self, node: ast.IfExp) -> Any:
        return self.value(node.body if self.value(node.test) else node.orelse)

    def _value_of_joinedstr(self, node: ast.JoinedStr) -> str:
        parts = [str(self.value(part)) for part in node.values]
        self.budget.text(sum(map(len, parts)))
        return "".join(parts)

    def _value_of_formattedvalue(self, node: ast.FormattedValue) -> str:
        spec = str(self.value(node.format_spec)) if node.format_spec else ""
        value = self.value(node.value)
        return operations.show(self.budget, value, _CONVERSIONS[node.conversion], spec)

    def _value_of_listcomp(self, node: ast.ListComp | ast.SetComp) -> list[Any]:
        return [self.value(node.elt) for _ in self._loop(node.generators)]

    def _value_of_setcomp(self, node: ast.SetComp) -> Any:
        return operations.call(self.budget, set, self._value_of_listcomp(node))

    def _value_of_dictcomp(self, node: ast.DictComp) -> ConfigDict:
        result = operations.new_dict(self.budget, self.origin(node))
        for _ in self._loop(node.generators):
            key, value = self.value(node.key), self.value(node.value)
            operations.put(self.budget, result, key, value, self.origin(node.key))
        return result

    def _loop(self, generators: list[ast.comprehension]) -> Iterator[None]:
        """Once for each round, with the loop's names bound until it ends."""
        if not generators:
            yield
            return
        first, rest = generators[0], generators[1:]
        rounds = operations.items(self.budget, self.value(first.iter))
        inner = names_bound([first.target])
        outer = {name: self.names[name] for name in inner if name in self.names}
        try:
            for item in rounds:
                self.budget.charge()
                self.assign(first.target, item)
                if all(self.value(test) for test in first.ifs):
                    yield from self._loop(rest)
        finally:
            for name in set(inner) - outer.keys():
                self.names.pop(name, None)
            self.names.update(outer)


def holder_of(of: Expressions, node: Any) -> tuple[Any, Any]:
    """What `node` is an item of, and its key there; `_base_.a` is one too."""
    named = isinstance(node, ast.Attribute)
    key = node.attr if named else of.value(node.slice)
    of.budget.look(key)
    if _is_base(node.value) and isinstance(key, str):
        return of.base("", of.origin(node)), key
    return of.value(node.value), key


# Looking at nodes ---------------------------------------------------------------


def _is_base(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id == "_base_"


def in_base(node: ast.expr) -> bool:
    """Whether `node` is a part of `_base_`, such as `_base_.a["b"][1]`."""
    while isinstance(node, (ast.Attribute, ast.Subscript)):
        node = node.value
    return _is_base(node)


def names_bound(targets: list[ast.expr]) -> list[str]:
    """The plain names among `targets`, those inside rows included."""
    found: list[str] = []
    for target in targets:
        if isinstance(target, ast.Name):
            found.append(target.id)
        elif isinstance(target, (ast.Tuple, ast.List)):
            found.extend(names_bound(target.elts))
    return found


def kind_of(node: ast.AST) -> str:
    """What `node` is, for a message."""
    names = {
        "Lambda": "a lambda", "Await": "await", "Yield": "yield",
        "NamedExpr": "an assignment inside an expression", "Attribute": "an attribute",
        "Starred": "a starred value",
    }  # fmt: skip
    return names.get(type(node).__name__, f"a {type(node).__name__}")


def source_of(node: ast.AST) -> str:
    """`node` as source, its texts left out: one of them may be a secret."""
    if sum(1 for _ in itertools.islice(ast.walk(node), _SHOWN)) == _SHOWN:
        return "..."
    shown = copy.deepcopy(node)
    for part in ast.walk(shown):
        if isinstance(part, ast.Constant) and isinstance(part.value, str):
            part.value = "..."
    try:
        return escape(re.sub(MARKER, "{{...}}", ast.unparse(shown)), 60)
    except RecursionError:
        return "..."
