"""Five newcomers get where they want to, with what docs/first-hour.md says it takes."""

import importlib.util
import re

import pytest

from tests.first_hour import roles
from tests.first_hour.terminal import ROOT, Terminal, environment

pytestmark = pytest.mark.slow
SAID = (ROOT / "docs" / "first-hour.md").read_text()


def counts_of(role, column):
    """Commands and lines that the page says; None where it says no way."""
    (row,) = re.findall(rf"^\| {role} .*$", SAID, re.MULTILINE)
    cell = row.split("|")[2 + column].strip()
    found = re.match(r"(\d+), (\d+)", cell)
    return found and tuple(map(int, found.groups()))


@pytest.fixture(scope="module")
def programs(tmp_path_factory):
    return environment(tmp_path_factory.mktemp("first-hour"))


@pytest.mark.parametrize("role", roles.ROLES, ids=lambda role: role.__name__)
def test_each_role_arrives(role, programs, tmp_path):
    if role is roles.notebook_user:
        pytest.importorskip("nbconvert")
    terminal = Terminal(programs, tmp_path / "here")
    lines = role(terminal)
    name = role.__name__.replace("_", " ")
    assert (terminal.commands, lines) == counts_of(name, 0)


@pytest.mark.parametrize("column, name", [(1, "lightning"), (2, "mmengine")])
@pytest.mark.parametrize("role", roles.OTHERS, ids=lambda role: role.__name__)
def test_the_others_are_counted_alike(role, column, name, programs, tmp_path):
    if importlib.util.find_spec(name) is None:
        pytest.skip(f"{name} is not here")
    terminal = Terminal(programs, tmp_path / "here")
    lines = role(name, terminal)
    said = counts_of(role.__name__.removesuffix("_of").replace("_", " "), column)
    assert said == (lines and (terminal.commands, lines))
