"""The value of an expression in a Python configuration, from its syntax tree.

Nothing is compiled or executed: each kind of node below is one method, and a kind
without a method is refused by name.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

from devrun.config import python_operations as operations
from devrun.config.limits import MAX_BITS, Budget, TooMuch, check_key
from devrun.config.origin import config_error, describe, hint_for
from devrun.config.python_methods import method_of
from devrun.config.python_syntax import (
    function_of_module,
    in_base,
    is_base,
    kind_of,
    names_bound,
    path_in_base,
    source_of,
)
from devrun.config.python_text import show
from devrun.config.tree import ConfigDict
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
_ENTRY = 100
_CONVERSIONS = {-1: "s", 115: "s", 114: "r", 97: "a"}


_ALIKE = {"generatorexp": "listcomp"}


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
        self.functions = dict(operations.FUNCTIONS)
        self.target: list[Any] = []
        self.budget = budget
        self._fill = fill
        self.base = base
        self._last = Origin(file)

    def origin(self, node: ast.AST) -> Origin:
        line = getattr(node, "lineno", 0)
        if line != self._last.line:
            self._last = Origin(self.file, line)
        return self._last

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
            self.budget.charge(1, 64)
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
            self.budget.charge(len(given))
            if len(given) != len(target.elts):
                self.fail(target, f"{len(target.elts)} names for {len(given)} values")
            for part, item in zip(target.elts, given, strict=True):
                self.assign(part, item)
        elif isinstance(target, ast.Subscript) or in_base(target):
            holder, key = holder_of(self, target)
            if in_base(target):  # from then on it is the bases' own
                copied = operations.MODULES["copy"]["deepcopy"]
                value = operations.call(self.budget, copied, value)
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
        found = list(self._elements(node.elts))
        return self._call("set", found)

    def _elements(self, nodes: list[ast.expr]) -> Iterator[Any]:
        for node in nodes:
            if isinstance(node, ast.Starred):
                yield from operations.items(self.budget, self.value(node.value))
            else:
                yield self.value(node)

    def _value_of_dict(self, node: ast.Dict) -> ConfigDict:
        result = operations.new_dict(self.budget, self.origin(node))
        written: set[Any] = set()
        for key_node, value_node in zip(node.keys, node.values, strict=True):
            value = self.value(value_node)
            if key_node is None:
                operations.update(self.budget, result, value)
                continue
            key = self.value(key_node)
            self.budget.look(key)
            check_key(key)
            if key in written:
                self.fail(key_node, f"the key {describe(key)} is given twice")
            operations.put(self.budget, result, key, value, self.origin(key_node))
            written.add(key)
        return result

    def _value_of_call(self, node: ast.Call) -> Any:
        function = node.func
        if isinstance(function, ast.Name) and function.id not in self.names:
            if function.id == "dict":
                return self._call_dict(node)
            if function.id in self.functions:
                args, options = self._arguments(node)
                return self._call(function.id, *args, **options)
        elif isinstance(function, ast.Attribute):
            name = function_of_module(function)
            if name in self.functions and name.partition(".")[0] not in self.names:
                args, options = self._arguments(node)
                return self._call(name, *args, **options)
            receiver = self.value(function.value)
            method = method_of(receiver, function.attr)
            if method is not None:
                args, options = self._arguments(node)
                return operations.call(self.budget, method, receiver, *args, **options)
        self.refuse(node, f"the call {source_of(function)}(...)")

    def _call(self, function: str, /, *args: Any, **options: Any) -> Any:
        return operations.call(self.budget, self.functions[function], *args, **options)

    def _arguments(self, node: ast.Call) -> tuple[list[Any], dict[str, Any]]:
        options: dict[str, Any] = {}
        for keyword in node.keywords:
            given = self.value(keyword.value)
            if keyword.arg is None:
                operations.items(self.budget, given)
            options.update({keyword.arg: given} if keyword.arg else given)
        self.budget.charge(len(options), _ENTRY * len(options))
        return list(self._elements(node.args)), options

    def _call_dict(self, node: ast.Call) -> ConfigDict:
        result = operations.new_dict(self.budget, self.origin(node))
        if len(node.args) > 1:
            self.fail(node, "dict(...) takes one positional argument at most")
        for argument in self._elements(node.args):
            operations.update(self.budget, result, argument)
        written: set[Any] = set()
        for keyword in node.keywords:
            value = self.value(keyword.value)
            names = (
                {keyword.arg}
                if keyword.arg
                else set(operations.items(self.budget, value))
            )
            for name in names & written:
                self.fail(keyword, f"the key {describe(name)} is given twice")
            written |= names
            if keyword.arg is None:
                operations.update(self.budget, result, value)
            else:
                operations.put(
                    self.budget, result, keyword.arg, value, self.origin(keyword)
                )
        return result

    def _value_of_attribute(self, node: ast.Attribute) -> Any:
        if path := path_in_base(node):
            return self.base(path, self.origin(node))
        self.refuse(node, f"the attribute {source_of(node)}")

    def _value_of_subscript(self, node: ast.Subscript) -> Any:
        holder, key = holder_of(self, node)
        if isinstance(holder, dict):
            self.budget.look(key)
            if key not in holder:
                self.fail(node, f"no key {describe(key)}; {hint_for(key, holder)}")
            return dict.__getitem__(holder, key)
        if not isinstance(holder, (str, list, tuple, range)):
            self.fail(node, f"{describe(holder)} has no items")
        if isinstance(key, slice):
            chosen = range(*key.indices(len(holder)))
            is_text = isinstance(holder, str)
            (self.budget.text if is_text else self.budget.rows)(len(chosen))
        return holder[key]

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
        self.budget.charge(1, 600)
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
            if not operations.compare(
                self.budget, type(operator).__name__, left, right
            ):
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
        return show(self.budget, value, _CONVERSIONS[node.conversion], spec)

    def _value_of_listcomp(self, node: ast.ListComp | ast.SetComp) -> list[Any]:
        return [self.value(node.elt) for _ in self._loop(node.generators)]

    def _value_of_setcomp(self, node: ast.SetComp) -> Any:
        return self._call("set", self._value_of_listcomp(node))

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
                self.budget.charge(1)
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
    if is_base(node.value) and isinstance(key, str):
        return of.base("", of.origin(node)), key
    return of.value(node.value), key
