"""Never 15: nothing grows until nobody can hold it in the head."""

import ast
import dataclasses
import importlib
import inspect
import pkgutil
import textwrap

import pytest

import devrun
from devrun.devices.base import DeviceAdapter
from devrun.devices.eager import EagerAdapter
from devrun.hooks.base import Hook
from devrun.runners.runner import BaseRunner


def functions(tree):
    return (
        n
        for n in ast.walk(tree)
        if isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef))
    )


def length(node):
    """Lines of a function without its docstring: a long contract is no fault."""
    body = node.body
    first = body[0]
    documented = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)
    skipped = first.end_lineno - first.lineno + 1 if documented else 0
    return node.end_lineno - node.lineno + 1 - skipped


def test_no_module_is_over_500_lines(modules):
    """Room for one coherent thing: a file of 450 beats three that only it uses."""
    long = [f"{m.path}: {n}" for m in modules if (n := len(m.text.splitlines())) > 500]
    assert not long, "\n".join(long)


def test_no_function_is_over_60_lines(modules):
    long = [
        f"{m.at(f)} {f.name}: {length(f)}"
        for m in modules
        for f in functions(m.tree)
        if length(f) > 60
    ]
    assert not long, "\n".join(long)


METHODS, ATTRIBUTES = 30, 20
VOCABULARIES = (Hook, DeviceAdapter)
"""What their subclasses answer to: a subclass is measured by what it has besides."""
LONGEST_VOCABULARY = 36
_APART = ("devrun.emulators", "devrun.testing")
"""An import root of its own, and tests, of which a class is a list."""


def test_a_class_is_measured_by_all_that_it_inherits():
    large = []
    for kind in classes():
        if issubclass(kind, BaseRunner) or kind in VOCABULARIES or is_protocol(kind):
            continue
        known = {name for base in VOCABULARIES if issubclass(kind, base)
                 for name in vars(base)}  # fmt: skip
        methods = members(kind) - known
        if len(methods) > METHODS or len(attributes(kind)) > ATTRIBUTES:
            place = f"{kind.__module__}.{kind.__qualname__}"
            large.append(f"{place}: {len(methods)}, {len(attributes(kind))}")
    assert not large, "\n".join(large)


@pytest.mark.parametrize("kind", VOCABULARIES)
def test_the_vocabularies_stay_small(kind):
    assert len(members(kind)) <= LONGEST_VOCABULARY


def test_the_runner_delegates(modules):
    """MMCV's names are many; what is behind each is in the part that it names."""
    (tree,) = (m.tree for m in modules if m.path == "devrun/runners/runner.py")
    long = [
        f"{f.name}: {len(f.body)} statements"
        for f in functions(tree)
        if f.name != "__init__" and len(f.body) > 4
    ]
    assert not long, "\n".join(long)
    assert len(attributes(BaseRunner)) <= ATTRIBUTES


def classes():
    found = []
    for info in pkgutil.walk_packages(devrun.__path__, "devrun."):
        acts = info.name.endswith("__main__") or info.name == "devrun.interop.mmcv"
        if acts or info.name.startswith(_APART):
            continue
        module = importlib.import_module(info.name)
        found += [
            value
            for value in vars(module).values()
            if inspect.isclass(value) and value.__module__ == info.name
        ]
    return found


def is_protocol(kind):
    return getattr(kind, "_is_protocol", False)


def members(kind):
    """Methods and properties, of all bases that are ours."""
    described = (property, classmethod, staticmethod)
    return {
        name
        for base in kind.__mro__
        if base.__module__.startswith("devrun")
        for name, value in vars(base).items()
        if not name.startswith("__")
        if inspect.isfunction(value) or isinstance(value, described)
    }


def attributes(kind):
    """Names assigned on `self` in any method, of all bases that are ours."""
    found = set()
    for base in kind.__mro__:
        if not base.__module__.startswith("devrun") or "<locals>" in base.__qualname__:
            continue
        if dataclasses.is_dataclass(base):
            continue  # plain data: its fields are its contract
        tree = ast.parse(textwrap.dedent(inspect.getsource(base)))
        found |= {
            node.attr
            for node in ast.walk(tree)
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
            if isinstance(node.value, ast.Name) and node.value.id == "self"
        }
    return found


def test_the_seam_does_not_grow():
    """What a device's author has to know; smaller is better."""
    for kind, most in {DeviceAdapter: 31, EagerAdapter: 41}.items():
        bases = [base for base in kind.__mro__ if issubclass(base, DeviceAdapter)]
        found = {name for base in bases for name in vars(base)}
        found.update(name for base in bases for name in base.__annotations__)
        public = sorted(name for name in found if not name.startswith("_"))
        assert len(public) <= most, public
