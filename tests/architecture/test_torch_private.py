"""Private names of torch's, which break with the next one, stand in one module of each
emulator."""

import ast
import importlib

import pytest
import torch

HOMES = (
    "devrun/emulators/poptorch/_torch_private.py",
    "devrun/emulators/habana_frameworks/_emulation/torch_private.py",
)
NAMESPACES = ("torch.ops.aten", "torch.cuda")
"""Where a name in a string is looked up."""
PYTHONS = ("sys", "copyreg")
"""Modules of Python whose private names are no matter of torch's version."""


def is_private(name):
    return name.startswith("_") and not name.startswith("__") and name != "_"


def own_names(modules):
    """Private attributes and variables, and functions, that the emulators define."""
    held, functions = set(), set()
    for module in modules:
        for node in ast.walk(module.tree):
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
                functions.add(node.name)
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                held.add(node.id)
            elif isinstance(node, ast.Attribute):
                if isinstance(node.ctx, ast.Store) or holder(node) == "self":
                    held.add(node.attr)
    return held, functions


def holder(attribute):
    """`self` for self.x; an empty string for an attribute of something longer."""
    return attribute.value.id if isinstance(attribute.value, ast.Name) else ""


def private_names(module, held, functions):
    """(line, name) of each private name that is torch's."""
    modules_own = {name for name in dir(torch.nn.Module()) if is_private(name)}
    for node in ast.walk(module.tree):
        names = []
        if isinstance(node, ast.ImportFrom):
            names = [*(node.module or "").split("."), *(a.name for a in node.names)]
        elif isinstance(node, ast.Import):
            names = [part for alias in node.names for part in alias.name.split(".")]
        if names:
            names = names if names[0] == "torch" else []
        elif isinstance(node, ast.Attribute):
            mine = holder(node) in ("self", "cls", *PYTHONS)
            if not mine and (
                node.attr in modules_own or node.attr not in held | functions
            ):
                names = [node.attr]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            text = node.value
            if is_private(text) and text not in held and is_torchs(text):
                names = [text]
        yield from ((node.lineno, name) for name in names if is_private(name))


def is_torchs(text):
    """Whether a string is an operator, or what a module of torch's holds."""
    places = (
        torch.ops.aten if name == "torch.ops.aten" else importlib.import_module(name)
        for name in NAMESPACES
    )
    return text.isidentifier() and any(hasattr(place, text) for place in places)


@pytest.fixture(scope="module")
def found(devrun_modules):
    """Path -> (line, name) of each private name of torch's in the emulators."""
    emulators = [m for m in devrun_modules if m.room == "emulators"]
    own = own_names(emulators)
    return {m.path: sorted(set(private_names(m, *own))) for m in emulators}


def test_no_other_module_names_what_is_private_to_torch(found):
    wrong = [
        f"{path}:{line} {name}"
        for path, uses in found.items()
        if path not in HOMES
        for line, name in uses
    ]
    assert not wrong, "\n".join(wrong)
