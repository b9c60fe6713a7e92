"""docs/architecture.md: its layers are enforced, its walks name what is there."""

import ast
import functools
import re

import pytest

from tests.architecture.test_layers import LAYERS
from tests.docs.blocks import ROOT, blocks, text_of

PAGE = "docs/architecture.md"
_STEP = re.compile(r"^\d+\. `(devrun/[\w/]+\.py)`: ((?:`[\w.]+`(?:,\s+)?)+)\.", re.M)


@functools.cache
def defined(path):
    """Functions, classes and `Class.method` of a file."""
    names = set()
    for node in ast.parse((ROOT / path).read_text()).body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            names.add(node.name)
        if isinstance(node, ast.ClassDef):
            inner = (n for n in node.body if isinstance(n, ast.FunctionDef))
            names |= {f"{node.name}.{each.name}" for each in inner}
    return names


def walks():
    """The numbered lists under `<!-- walk -->`, by the heading above."""
    for part in text_of(PAGE).split("\n## ")[1:]:
        heading, _, text = part.partition("\n")
        if "<!-- walk -->" in text:
            yield heading, text.partition("<!-- walk -->")[2]


def steps():
    for heading, text in walks():
        for path, names in _STEP.findall(text):
            for name in re.findall(r"`([\w.]+)`", names):
                yield pytest.param(path, name, id=f"{heading[:14]}-{path}-{name}")


@pytest.mark.parametrize(("path", "name"), list(steps()))
def test_a_function_of_a_walk_is_in_the_file_that_is_named(path, name):
    assert name in defined(path)


def test_every_step_of_a_walk_names_a_file_and_a_function():
    for heading, text in walks():
        numbers = re.findall(r"^(\d+)\. ", text, re.MULTILINE)
        assert numbers == [str(n + 1) for n in range(len(numbers))], heading
        assert len(numbers) == len(_STEP.findall(text)) >= 5, heading


def test_the_picture_has_the_layers_that_are_enforced():
    (picture,) = blocks(PAGE, "text", "layers")
    drawn = {}
    for line in picture.text.splitlines():
        level, listed = line[:4], re.split(r"\s{4,}", line[4:])[0]
        names = re.sub(r"\(.*?\)", "", listed)
        for name in re.findall(r"[\w./]+", names):
            drawn["" if name == "devrun/__init__.py" else name] = int(level)
    assert drawn == LAYERS


def test_the_owners_are_in_the_files_that_are_named():
    rows = re.findall(r"\| `(\w+)`, `(devrun/[\w/]+\.py)` \|", text_of(PAGE))
    assert len(rows) >= 5
    for name, path in rows:
        assert name in defined(path)
