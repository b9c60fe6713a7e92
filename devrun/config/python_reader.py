"""Python text to a tree, without running it: what a configuration writes.

Nothing is compiled, executed or imported: each kind of statement and of expression
that is followed is one method of `Reader`, and a kind without a method is refused.
"""

from __future__ import annotations

import ast
import logging
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn

from devrun.config.limits import MAX_BITS, Budget, TooMuch
from devrun.config.origin import config_error, describe, hint_for
from devrun.config.python_operations import Operations
from devrun.config.template import MARKER
from devrun.config.tree import ConfigDict, origin_of, place
from devrun.errors import ConfigError
from devrun.place import Origin, Place
from devrun.python38 import unparsed, unsuffixed
from devrun.text import escape

TRUST = "use --trust-config to run this file as Python code"
WRONG = (
    ArithmeticError, AttributeError, LookupError, MemoryError, RecursionError,
    TypeError, ValueError,
)  # fmt: skip
"""What an operation on the values of a configuration can raise."""
_SCALARS = (str, bool, int, float, type(None))
_CONVERSIONS = {-1: "s", 115: "s", 114: "r", 97: "a"}


def parse(text: str, file: str, budget: Budget) -> ast.Module:
    """The syntax tree of `text`.

    Raises:
        ConfigError: no valid Python, or too much of it.
    """
    budget.charge(len(text) >> 2)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # '\d' in a text is its author's matter
            return ast.parse(text, filename="<config>")
    except (SyntaxError, ValueError) as error:
        reason = f"not valid Python: {getattr(error, 'msg', error)}"
        line = getattr(error, "lineno", None) or 0
        raise config_error(reason, Origin(file, line)) from None


def names_read(tree: ast.Module) -> set[str]:
    """The names an expression reads, and those a loop leaves behind."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            found.add(node.id)
        elif isinstance(node, ast.For):
            found.update(_names_bound([node.target]))
    return found


class Reader:
    """Follows the statements of one file.

    Args:
        fill: replaces the markers of templates.
        base: gives the value that a dotted path has in the merged bases, and "" all
            of them.
        load_bases: is given the value of `_base_`.
    """

    def __init__(
        self,
        file: str,
        budget: Budget,
        fill: Callable[[str], Any],
        base: Callable[[str, Origin], Any],
        load_bases: Callable[[Any, Origin], None],
    ) -> None:
        self.file = file
        self.budget = budget
        self._fill = fill
        self._base = base
        self._load_bases = load_bases
        self.names = ConfigDict(__name__="__config__")
        self._inner: dict[str, Any] = {}
        """The names of the comprehension at hand."""
        self.do = Operations(budget)
        self.functions = self.do.functions
        self.functions["globals"] = lambda: self.names
        self.imports: dict[str, ast.stmt] = {}
        self.target: list[str] = []
        """What is being assigned, for messages."""

    def read(self, text: str) -> tuple[ConfigDict, set[str]]:
        """The variables of the file, each with its line, and the names it reads.

        Raises:
            ConfigError: what is no configuration, or asks for too much work.
        """
        tree = parse(text, self.file, self.budget)
        self.run(tree.body)
        for name in list(self.names):
            if str(name).startswith("__") or name == "_base_":
                del self.names[name]
        return self.names, names_read(tree)

    def origin(self, node: ast.AST) -> Origin:
        return Origin(self.file, getattr(node, "lineno", 0))

    def fail(self, node: ast.AST, reason: str) -> NoReturn:
        raise config_error(reason, self.origin(node), self.target)

    def refuse(self, node: ast.AST, what: str) -> NoReturn:
        self.fail(
            node, f"{what} is not read in a configuration; write the value, or {TRUST}"
        )

    def value(self, node: ast.expr | ast.stmt) -> Any:
        """The value of an expression; a statement has none.

        Raises:
            ConfigError: anything but plain values and what is made of them.
        """
        kind = type(node).__name__
        method = _PLAIN.get(kind) or getattr(Reader, f"_read_{kind.lower()}", None)
        if method is None:
            if isinstance(node, ast.stmt):
                word = kind.replace("FunctionDef", "def").replace("Delete", "del")
                self.refuse(node, f"`{unsuffixed(word, 'Def').lower()}`")
            self.refuse(node, f"`{source_of(node)}`")
        try:
            self.budget.charge()
            return method(self, node)
        except ConfigError as error:
            error.locate(Place(self.origin(node), tuple(self.target)))
            raise
        except RecursionError:
            self.fail(node, "nested too deeply; write it in steps")
        except WRONG as error:
            text = str(error) or type(error).__name__
            if isinstance(error, KeyError):
                text = f"no key {escape(text, 80)}"
            self.fail(node, f"{escape(text, 160)} (in `{source_of(node)}`)")

    # Statements -------------------------------------------------------------------

    def run(self, body: list[ast.stmt]) -> None:
        for node in body:
            self.target = []
            self.value(node)

    def assign(
        self, target: ast.expr, value: Any, inner: dict[str, Any] | None = None
    ) -> None:
        """Bind `value` to a name, an unpacked row of targets or a subscript.

        `inner` takes the names of a comprehension.
        """
        if isinstance(target, ast.Name) and inner is not None:
            inner[target.id] = value
        elif isinstance(target, ast.Name):
            place(self.names, target.id, value, self.origin(target))
            if target.id == "_base_":
                self._load_bases(value, self.origin(target))
        elif isinstance(target, (ast.Tuple, ast.List)):
            given = self.do.items(value)
            if len(given) != len(target.elts):
                self.fail(target, f"{len(target.elts)} names for {len(given)} values")
            for part, item in zip(target.elts, given):
                self.assign(part, item, inner)
        elif isinstance(target, ast.Subscript) or _in_base(target):
            holder, key = self.holder(target)
            if _in_base(target):  # from then on it is the bases' own
                value = self.do.deep_copy(value)
            if isinstance(holder, ConfigDict):
                line = self.origin(target)
                self.do.put(holder, key, value, line)
            elif isinstance(holder, list) and isinstance(key, int):
                holder[key] = value
            else:
                self.fail(target, f"{describe(holder)} takes no value at that place")
        else:
            self.refuse(target, f"an assignment to `{source_of(target)}`")

    def _read_assign(self, node: ast.Assign | ast.AnnAssign) -> None:
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        self.target = _names_bound(targets)[:1]
        if node.value is not None:
            value = self.value(node.value)
            for target in targets:
                self.assign(target, value)

    _read_annassign = _read_assign

    def _read_augassign(self, node: ast.AugAssign) -> None:
        self.target = _names_bound([node.target])[:1]
        old, given = self.value(node.target), self.value(node.value)
        if isinstance(old, list) and isinstance(node.op, ast.Add):
            # In place, as Python does: other names for the list see it too.
            old.extend(self.do.items(given))
            self.assign(node.target, self.budget.made(old))
        else:
            made = self.do.operate(node.op, old, given)
            self.assign(node.target, made)

    def _read_for(self, node: ast.For) -> None:
        for item in self.do.items(self.value(node.iter)):
            self.budget.charge()
            self.assign(node.target, item)
            self.run(node.body)
        self.run(node.orelse)

    def _read_import(self, node: ast.Import | ast.ImportFrom) -> None:
        """Nothing is imported: `copy` has its two functions here, and anything else is
        refused where it is used."""
        module = f"{node.module}." if isinstance(node, ast.ImportFrom) else ""
        for alias in node.names:
            name, known = alias.asname or alias.name, f"{module}{alias.name}"
            if known in self.functions:
                self.functions[name] = self.functions[known]
            elif not known == "copy" == name:
                self.imports[name.partition(".")[0]] = node
                logging.getLogger("devrun").warning(
                    "%s: nothing is imported; a module that registers something "
                    "belongs into custom_imports",
                    self.origin(node),
                )

    _read_importfrom = _read_import

    # Expressions ----------------------------------------------------------------

    def _read_constant(self, node: ast.Constant) -> Any:
        value = node.value
        if isinstance(value, str):
            self.budget.charge(len(value) >> 6)
            return self._fill(value)
        if isinstance(value, int) and value.bit_length() > MAX_BITS:
            raise TooMuch(f"{describe(value)}; at most {MAX_BITS} bits are taken")
        if not isinstance(value, _SCALARS):
            self.refuse(node, f"a {type(value).__name__} value")
        return value

    def _read_name(self, node: ast.Name) -> Any:
        name = node.id
        for known in (self._inner, self.names):
            if name in known:
                return known[name]
        filled = self._fill(name)
        if filled is not name:
            return filled
        if name in self.imports:
            self.refuse(self.imports[name], "`import`")
        if name == "dict" or name in self.functions:
            self.refuse(node, f"the function {name} as a value")
        hint = hint_for(name, self.names.keys() - {"__name__"})
        self.fail(node, f"the name {name!r} is not defined above; {hint}".rstrip("; "))

    def elements(self, nodes: list[ast.expr]) -> Iterator[Any]:
        for node in nodes:
            if isinstance(node, ast.Starred):
                yield from self.do.items(self.value(node.value))
            else:
                yield self.value(node)

    def _read_dict(self, node: ast.Dict) -> ConfigDict:
        result = self.do.new_dict(self.origin(node))
        for key, value in zip(node.keys, node.values):
            if key is None:
                self.do.update(result, self.value(value))
            else:
                line = self.origin(key)
                self.do.put(result, self.value(key), self.value(value), line)
        return result

    def _read_call(self, node: ast.Call) -> Any:
        function = node.func
        name = _dotted(function)
        root, hiding = name.partition(".")[0], (self._inner, self.names, self.imports)
        if not any(root in names for names in hiding):
            if name == "dict":
                return self._call_dict(node)
            if name in self.functions:
                return self._call(self.functions[name], node)
        if isinstance(function, ast.Attribute):
            receiver = self.value(function.value)
            method = self.do.method_of(receiver, function.attr)
            if method is not None:
                return self._call(method, node)
        self.refuse(node, f"the call {source_of(function)}(...)")

    def _call(self, function: Callable[..., Any], node: ast.Call) -> Any:
        return function(*self.elements(node.args), **self._keywords(node))

    def _call_dict(self, node: ast.Call) -> ConfigDict:
        if len(node.args) > 1:
            self.fail(node, "dict(...) takes one positional argument at most")
        result = self.do.new_dict(self.origin(node))
        for given in self.elements(node.args):
            self.do.update(result, given)
        self.do.update(result, self._keywords(node))
        return result

    def _keywords(self, node: ast.Call) -> ConfigDict:
        """The arguments with a name, each with its line."""
        result = self.do.new_dict()
        for keyword in node.keywords:
            value, line = self.value(keyword.value), self.origin(keyword)
            given = value if keyword.arg is None else {keyword.arg: value}
            if not isinstance(given, dict):
                self.fail(keyword, f"`**` takes a dict, not {describe(given)}")
            for key in self.do.items(given):
                if key in result:
                    self.fail(keyword, f"the key {describe(key)} is given twice")
                own = origin_of(given, key) or line
                value = dict.__getitem__(given, key)
                self.do.put(result, key, value, own)
        return result

    def _read_attribute(self, node: ast.Attribute) -> Any:
        root, _, path = _dotted(node).partition(".")
        if root == "_base_":
            return self._base(path, self.origin(node))
        self.refuse(node, f"the attribute {source_of(node)}")

    def _read_subscript(self, node: ast.Subscript) -> Any:
        holder, key = self.holder(node)
        if isinstance(holder, dict):
            if key not in holder:
                self.fail(node, f"no key {describe(key)}; {hint_for(key, holder)}")
            return dict.__getitem__(holder, key)
        if not isinstance(holder, (str, list, tuple, range)):
            self.fail(node, f"{describe(holder)} has no items")
        found = holder[key]
        return self.budget.made(found) if isinstance(key, slice) else found

    def holder(self, node: Any) -> tuple[Any, Any]:
        """What `node` is an item of, and its key there; `_base_.a` is one too."""
        named = isinstance(node, ast.Attribute)
        key = node.attr if named else self.value(node.slice)
        self.budget.look(key)
        if isinstance(node.value, ast.Name) and node.value.id == "_base_":
            return self._base("", self.origin(node)), key
        return self.value(node.value), key

    def _read_boolop(self, node: ast.BoolOp) -> Any:
        stop_at = isinstance(node.op, ast.Or)
        value: Any = None
        for part in node.values:
            value = self.value(part)
            if bool(value) is stop_at:
                break
        return value

    def _read_compare(self, node: ast.Compare) -> bool:
        left = self.value(node.left)
        for sign, right_node in zip(node.ops, node.comparators):
            right = self.value(right_node)
            if not self.do.operate(sign, left, right):
                return False
            left = right
        return True

    def _read_joinedstr(self, node: ast.JoinedStr) -> str:
        parts = [str(self.value(part)) for part in node.values]
        self.budget.room(sum(map(len, parts)))
        return "".join(parts)

    def _read_formattedvalue(self, node: ast.FormattedValue) -> str:
        spec = str(self.value(node.format_spec)) if node.format_spec else ""
        value, conversion = self.value(node.value), _CONVERSIONS[node.conversion]
        return self.do.show(value, conversion, spec)

    def _read_dictcomp(self, node: ast.DictComp) -> ConfigDict:
        result = self.do.new_dict(self.origin(node))
        for _ in self.loop(node.generators):
            key, value = self.value(node.key), self.value(node.value)
            self.do.put(result, key, value, self.origin(node.key))
        return result

    def loop(self, generators: list[ast.comprehension]) -> Iterator[None]:
        """Once for each round, with the loop's names bound until it ends."""
        if not generators:
            yield
            return
        (first, *rest), outer = generators, self._inner
        rounds = self.do.items(self.value(first.iter))
        self._inner = dict(outer)
        for item in rounds:
            self.budget.charge()
            self.assign(first.target, item, self._inner)
            if all(self.value(test) for test in first.ifs):
                yield from self.loop(rest)
        self._inner = outer


_PLAIN: dict[str, Callable[[Reader, Any], Any]] = {
    "BinOp": lambda of, node: of.do.operate(
        node.op, of.value(node.left), of.value(node.right)
    ),
    "Expr": lambda of, node: of.value(node.value),
    "If": lambda of, node: of.run(node.body if of.value(node.test) else node.orelse),
    "IfExp": lambda of, node: of.value(
        node.body if of.value(node.test) else node.orelse
    ),
    "List": lambda of, node: list(of.elements(node.elts)),
    "ListComp": lambda of, node: [of.value(node.elt) for _ in of.loop(node.generators)],
    "Pass": lambda of, node: None,
    "Slice": lambda of, node: slice(
        *(part and of.value(part) for part in (node.lower, node.upper, node.step))
    ),
    "Tuple": lambda of, node: tuple(of.elements(node.elts)),
    "UnaryOp": lambda of, node: of.do.operate(node.op, of.value(node.operand)),
}
"""Kinds of nodes whose value is one line; the others have a method."""
_PLAIN["GeneratorExp"] = _PLAIN["ListComp"]


# Looking at nodes ---------------------------------------------------------------


def _dotted(node: ast.expr) -> str:
    """The source of a name with attributes, such as `a.b.c`; empty for all else."""
    if isinstance(node, ast.Attribute):
        owner = _dotted(node.value)
        return f"{owner}.{node.attr}" if owner else ""
    return node.id if isinstance(node, ast.Name) else ""


def _in_base(node: ast.expr) -> bool:
    """Whether `node` is a part of `_base_`, such as `_base_.a["b"][1]`."""
    while isinstance(node, (ast.Attribute, ast.Subscript)):
        node = node.value
    return isinstance(node, ast.Name) and node.id == "_base_"


def _names_bound(targets: Sequence[ast.expr]) -> list[str]:
    """The plain names among `targets`, those inside rows included."""
    return [
        node.id
        for target in targets
        for node in ast.walk(target)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    ]


def source_of(node: ast.AST) -> str:
    """`node` as source, its texts left out: one of them may be a secret."""
    for part in ast.walk(node):  # it is read no further: this is for an error
        if isinstance(part, ast.Constant) and isinstance(part.value, str):
            part.value = "..."
    try:
        return escape(re.sub(MARKER, "{{...}}", unparsed(node) or "..."), 60)
    except RecursionError:
        return "..."
