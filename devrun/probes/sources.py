"""Lines of the user's classes and modules, found in their source."""

from __future__ import annotations

import ast
import inspect
import linecache
import re
import sys
import textwrap
from types import CodeType, ModuleType
from typing import Any, Union

from torch import nn

from devrun.probes.sites import user_line

_TAKES = ("clear", "pop", "popleft", "popitem", "remove")
_BEST = ("max", "min")
"""Calls that compare their arguments by size."""
_CHOOSE = ("choice", "choices", "multinomial", "Categorical")
"""Calls that draw by the chances that they are given."""
_OWN = ("self", "cls")
_BY_SIZE = (ast.Lt, ast.LtE, ast.Gt, ast.GtE)
_LOOPS = (ast.For, ast.While, ast.ListComp, ast.GeneratorExp)
_ADDS = ("append", "appendleft", "extend", "insert", "add")
_STEPS = ("forward", "train_step", "val_step")
"""Methods that devrun and torch call."""
_Owner = Union[type, ModuleType, CodeType]


def assigned(owner: type | ModuleType, name: str) -> tuple[str | None, str]:
    """`file:line` and text of the assignment of `self.name`, or of `name` itself.

    None where it is in no code of the user's or of a library of models.

    Args:
        owner: the class, or the module, that it is an attribute of.
    """
    is_module = isinstance(owner, ModuleType)
    start, word = r"" if is_module else r"\s*", re.escape(name)
    registers = rf"\s*self\.register_\w+\([\"']{word}[\"']"
    among = r"(self\.\w+\s*[,=]\s*)*"  # self.a, self.b = ... or self.a = self.b = ...
    own = re.compile(rf"\s*{among}self\.{word}\s*(:|=[^=]|,[^()]*=)|{registers}")
    # `name = self.name[...]` only reads it
    plain = re.compile(rf"{start}{word}\s*(:|=[^=])(?!.*\bself\.{word}\b)")
    for one in (owner,) if is_module else owner.__mro__:
        lines, first, file = _source(one)
        for wanted in (own, plain):
            for number, line in enumerate(lines, max(first, 1)):
                if wanted.match(line) and user_line([(file, number)]):
                    return f"{file}:{number}", linecache.getline(file, number).strip()
    return None, ""


def _source(owner: _Owner) -> tuple[list[str], int, str]:
    """Its lines, the number of the first, and its file; no lines where it has none."""
    try:
        lines, first = inspect.getsourcelines(owner)
        return lines, first, str(inspect.getfile(owner))
    except (OSError, TypeError):
        return [], 0, ""


def names(model: nn.Module, error: KeyError) -> bool:
    """Whether the class of the model has the key in it, and may return it."""
    lines = _source(type(model))[0]
    return any(str(key) in line for key in error.args[:1] for line in lines)


def _tree(owner: _Owner) -> tuple[ast.Module, int, str]:
    """Its source as a tree, the number of its first line, and its file."""
    lines, first, file = _source(owner)
    return ast.parse(textwrap.dedent("".join(lines))), first, file


def loop_around(file: str, line: int) -> range:
    """The lines of the innermost loop of `file` that `line` is in; empty: of none."""
    tree = ast.parse("".join(linecache.getlines(file)))
    every = (one for one in ast.walk(tree) if isinstance(one, _LOOPS))
    ranges = (range(one.lineno, (one.end_lineno or 0) + 1) for one in every)
    return min((one for one in ranges if line in one), key=len, default=range(0))


def stored(owner: _Owner, name: str, of: str = "") -> str | None:
    """The last line of the class that adds to `self.name`, or else that sets it; of
    a module or code, to `name`, or `of` "attr" to that of any object."""
    tree, first, file = _tree(owner)
    of = of or ("attr" if isinstance(owner, type) else "id")
    nodes: list[Any] = [one for one in ast.walk(tree) if _stores(one, name, of)]
    adds = [one for one in nodes if isinstance(one, ast.Call)]
    found = [one.lineno for one in adds or nodes]
    return user_line([(file, max(first, 1) + max(found) - 1)]) if found else None


def bounded(owner: type, name: str) -> bool:
    """Whether its file takes something out of what is called `name`, sets it anew, or
    asks what is in it."""
    sets, parts = 0, []
    for node in ast.walk(_tree(sys.modules.get(owner.__module__, sys))[0]):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            sets += node.attr == name
        elif isinstance(node, ast.AugAssign):
            sets -= getattr(node.target, "attr", None) == name
        elif isinstance(node, ast.Call):
            takes = getattr(node.func, "attr", None) in _TAKES
            parts += [getattr(node.func, "value", None)] if takes else []
            parts += node.args if getattr(node.func, "id", None) == "len" else []
        elif isinstance(node, ast.Subscript):
            whole = isinstance(node.slice, ast.Slice) or isinstance(node.ctx, ast.Del)
            parts += [node.value] if whole else []
        elif isinstance(node, ast.Compare):
            parts += node.comparators
    return sets > 1 or any(getattr(one, "attr", None) == name for one in parts)


def _stores(node: Any, name: str, of: str = "attr") -> bool:
    """`self.name = ...`, alone or among others, or `self.name[...].append(...)`."""
    if isinstance(node, ast.Call):
        called: Any = node.func
        if getattr(called, "attr", None) not in _ADDS:
            return False
        into = called.value
        while isinstance(into, ast.Subscript):
            into = into.value
        return getattr(into, of, None) == name
    stored = isinstance(getattr(node, "ctx", None), ast.Store)
    if isinstance(node, ast.Subscript):
        node = node.value
    return stored and getattr(node, of, None) == name


def carried(owner: type, name: str) -> str | None:
    """The line of a method that changes `self.name` after it has read what it was.

    A cache is none, which an `if` that reads it fills; nor what another method, which
    the class calls, begins anew.
    """
    tree, first, file = _tree(owner)
    every: list[Any] = list(ast.walk(tree))
    methods = _methods(tree)
    called = {*_STEPS, *(n.func.attr for n in every if _is_own_call(n))}
    anew = [n for n in methods if n.name in called and _begins(n, name)]
    for method in methods:
        if any(one is not method for one in anew):
            continue
        nodes = _without_caches(method, name)
        # `self.name[...] = x` reads nothing of it, `self.name += x` does
        parts = {id(one.value) for one in nodes if _is_part_set(one)}
        read = [n.lineno for n in nodes if _loads(n, name) and id(n) not in parts]
        adds = [one for one in nodes if isinstance(one, ast.AugAssign)]
        read += [one.lineno for one in adds if _stores(one.target, name)]
        stores = [one for one in nodes if _stores(one, name)]
        cleared = [one.lineno for one in nodes if _clears(one, name)]
        begins = min([*cleared, *(one.lineno + 1 for one in stores)], default=0)
        if read and stores and begins > min(read):
            line = max(one.lineno for one in stores)
            return user_line([(file, first + line - 1)])
    return None


def _methods(tree: ast.AST) -> list[ast.FunctionDef]:
    """Its functions, but those that make an object."""
    every = (one for one in ast.walk(tree) if isinstance(one, ast.FunctionDef))
    return [one for one in every if one.name != "__init__"]


def counts(owner: type, name: str) -> bool:
    """Whether a class adds to `self.name`, in the one method that sets it later."""
    methods = (list(ast.walk(one)) for one in _methods(_tree(owner)[0]))
    setting = [nodes for nodes in methods if any(_stores(one, name) for one in nodes)]
    added = (
        getattr(one.target, "attr", None) == name
        for nodes in setting
        for one in nodes
        if isinstance(one, ast.AugAssign)
    )
    return len(setting) == 1 and any(added)


def decides(owner: _Owner, name: str) -> bool:
    """Whether a class compares `self.name` by size or draws by it, or a module computes
    with it, and not only what it is next; of a file, a global of that name."""
    tree = _tree(owner)[0]
    nodes: list[Any] = list(ast.walk(tree))
    of = "attr" if isinstance(owner, type) else "id"
    if any(_chooses(method, name, of) for method in _methods(tree)):
        return True
    set_here = (n for n in nodes if isinstance(n, (ast.Assign, ast.AugAssign)))
    own = {
        id(part)
        for one in set_here
        if any(_stores(part, name, of) for part in ast.walk(one))
        for part in ast.walk(one)
    }
    kinds = [owner] if isinstance(owner, type) else vars(owner).values()
    models = {
        kind.__name__
        for kind in kinds
        if isinstance(kind, type) and issubclass(kind, nn.Module)
    }
    classes = (one for one in nodes if getattr(one, "name", None) in models)
    inside = [part for one in classes for part in ast.walk(one)]
    shown = (v for one in inside if isinstance(one, ast.Dict) for v in one.values)
    computes = {id(part) for part in inside}
    computes -= {id(part) for one in shown for part in ast.walk(one)}
    for node in nodes:
        sides: list[Any] = []
        best = _called(node) in _BEST and id(node) in own
        if best and any(_loads(one, name, of) for one in ast.walk(node)):
            return True  # `self.name = max(self.name, x)`, or `min(1, self.name + x)`
        if isinstance(node, ast.Compare) and isinstance(node.ops[0], _BY_SIZE):
            sides = [node.left, *node.comparators]
        elif isinstance(node, ast.BinOp) and id(node) in computes:
            sides = [] if isinstance(node.op, ast.Mod) else [node.left, node.right]
            bound = (one for one in sides if _called(one) in _BEST)
            # `min(self.name, 200) / 200`
            sides += [arg for one in bound for arg in one.args]
        sides = [getattr(one, "operand", one) for one in sides]  # `-self.name / 200`
        if id(node) not in own and any(_loads(side, name, of) for side in sides):
            return True
    return False


def _chooses(method: ast.AST, name: str, of: str) -> bool:
    """Whether it draws by `self.name`, or by a variable that it makes of that."""
    nodes: list[Any] = list(ast.walk(method))
    sets = [one for one in nodes if isinstance(one, ast.Assign)]
    read = [
        one for one in sets if any(_loads(n, name, of) for n in ast.walk(one.value))
    ]
    made = {getattr(target, "id", None) for one in read for target in one.targets}
    draws = (
        one
        for one in nodes
        if isinstance(one, ast.Call)
        and getattr(one.func, "attr", getattr(one.func, "id", "")) in _CHOOSE
    )
    parts = (part for one in draws for part in ast.walk(one))
    return any(_loads(n, name, of) or getattr(n, "id", "") in made for n in parts)


def _called(node: Any) -> str:
    """The name of the function that `node` calls, if it is a call of one."""
    return getattr(node.func, "id", "") if isinstance(node, ast.Call) else ""


def _without_caches(method: ast.AST, name: str) -> list[Any]:
    """Its nodes, but those of an `if` that asks for `self.name` and sets it."""
    found: list[Any] = []
    todo: list[ast.AST] = [method]
    while todo:
        node = todo.pop()
        if isinstance(node, ast.If):
            asks = any(_loads(one, name) for one in ast.walk(node.test))
            if asks and any(_stores(one, name) for one in ast.walk(node)):
                continue
        found.append(node)
        todo += ast.iter_child_nodes(node)
    return found


def _is_own_call(node: Any) -> bool:
    """`self.name(...)`."""
    called = getattr(node, "func", None)
    return getattr(getattr(called, "value", None), "id", "") in _OWN


def _begins(method: ast.AST, name: str) -> bool:
    """Whether a method sets `self.name` to what does not come of it, or clears it."""
    for node in _without_caches(method, name):
        targets = node.targets if isinstance(node, ast.Assign) else []
        # alone or among others
        parts = [part for one in targets for part in getattr(one, "elts", [one])]
        sets = any(getattr(part, "attr", None) == name for part in parts)
        if sets and not any(_loads(one, name) for one in ast.walk(node.value)):
            return True
        if _clears(node, name):
            return True
    return False


def _is_part_set(node: Any) -> bool:
    """`x[...]`, where it gets another value."""
    return isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store)


def _clears(node: Any, name: str) -> bool:
    """`self.name.clear()`."""
    cleared = getattr(node, "attr", None) == "clear"
    return cleared and getattr(node.value, "attr", None) == name


def _loads(node: Any, name: str, of: str = "attr") -> bool:
    """`self.name`, where it is read, and not `x.name`; of a file, `name`."""
    loaded = isinstance(getattr(node, "ctx", None), ast.Load)
    mine = of == "id" or getattr(getattr(node, "value", None), "id", "") in _OWN
    return loaded and mine and getattr(node, of, None) == name


def made_at(model: nn.Module, name: str) -> str | None:
    """The user's line that makes a parameter or module, or the module that it is in."""
    site, owner = None, model
    for part in name.split("."):
        site = assigned(type(owner), part)[0] or site
        owner = getattr(owner, part)
    return site
