"""Tables of the documents say what the code says."""

import ast
import dataclasses
import inspect
import re

import pytest

from devrun.cli.exits import STATUSES
from devrun.cli.main import parser_of
from devrun.cli.parser import flags_of
from devrun.config import KEYS
from devrun.config.options import parse_value
from devrun.hooks import HOOKS, STAGES, Priority
from devrun.step import Capability
from tests.docs.blocks import ROOT, codes, items, table, text_of
from tests.support.strict import zip_strict

COMMANDS_PAGE = "docs/commands.md"
HELP = {"-h", "--help"}


def written_flag(action):
    """A flag as the page of commands writes it."""
    if action.nargs == 0:
        return action.option_strings[0]
    metavar = action.metavar or "L"
    return (
        f"{action.option_strings[0]} {metavar}{' ...' if action.nargs == '+' else ''}"
    )


def test_the_flag_table_has_every_flag_as_the_parser_takes_it():
    actions = parser_of("train")._actions
    expected = [
        written_flag(a)
        for a in actions
        if a.option_strings and not HELP & set(a.option_strings)
    ]
    assert [
        codes(row[0])[0] for row in table(COMMANDS_PAGE, "flag", "meaning")
    ] == expected


def test_every_spelling_of_a_flag_is_in_the_page():
    page = text_of(COMMANDS_PAGE)
    for flag in set(flags_of(parser_of("train"))) - HELP:
        assert f"`{flag}" in page


def test_the_launchers_are_named():
    (action,) = [a for a in parser_of("train")._actions if a.dest == "launcher"]
    (row,) = [r for r in table(COMMANDS_PAGE, "flag", "meaning") if "launcher" in r[0]]
    assert set(codes(row[1])) == set(action.choices)


def test_the_exit_statuses_are_those_of_the_command():
    assert dict(table(COMMANDS_PAGE, "status", "meaning")) == STATUSES


def test_the_extras_are_those_of_the_package():
    text = (ROOT / "pyproject.toml").read_text()
    section = text.split("[project.optional-dependencies]")[1].split("\n[")[0]
    declared = set(re.findall(r"^(\w+) = \[", section, re.MULTILINE))
    named = {
        name
        for row in table("docs/install.md", "extra", "brings")
        for name in codes(row[0])
    }
    assert named == declared


def test_the_version_of_the_page_on_maturity_is_this_one():
    import devrun

    assert f"devrun {devrun.__version__} is" in text_of("docs/maturity.md")
    assert f"{devrun.__version__}" in (ROOT / "CHANGELOG.md").read_text()


def test_the_stage_table_has_every_stage_in_order():
    rows = table("docs/hooks.md", "stage", "when")
    assert [codes(row[0])[0] for row in rows] == list(STAGES)


def test_the_priorities_are_the_members_of_priority():
    rows = table("docs/hooks.md", "priority", "number")
    named = {codes(row[0])[0]: int(row[1]) for row in rows if codes(row[0])}
    assert named == {member.name: member.value for member in Priority}


def test_the_capabilities_are_described_as_in_the_code():
    rows = table("docs/hooks.md", "capability", "what the device can do")
    described = {codes(row[0])[0]: row[1].replace("`", "") for row in rows}
    assert described == {member.name: member.value for member in Capability}


def signature(target):
    """(name, default) of each argument; what is passed on is `...`, once."""
    found = []
    for parameter in inspect.signature(target).parameters.values():
        if parameter.kind in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL):
            if ("...", parameter.empty) not in found:
                found.append(("...", parameter.empty))
        else:
            found.append((parameter.name, parameter.default))
    return found


def agrees(cell, target, *, shared=()):
    """Whether the arguments in `cell` are those of `target`, but for `shared`."""
    actual = [(n, d) for n, d in signature(target) if n not in shared]
    written = [code.partition("=") for code in codes(cell)]
    assert [name for name, _, _ in written] == [name for name, _ in actual]
    for (name, equals, text), (_, default) in zip_strict(written, actual):
        if equals:
            assert ast.literal_eval(text) == default, name
        else:
            assert default is inspect.Parameter.empty or name == "target_ratio", name


def shipped(suffix=""):
    """Names in HOOKS of devrun's own classes."""
    HOOKS.get("none of them")  # loads the built-in ones
    return {
        name
        for name, kind in HOOKS.module_dict.items()
        if kind.__module__.startswith("devrun.") and name.endswith(suffix)
    }


def test_every_shipped_hook_is_listed():
    policies = shipped("LrUpdaterHook") | shipped("MomentumUpdaterHook")
    listed = {codes(item)[0] for item in items("docs/hooks.md", "## Shipped hooks")}
    assert listed == shipped() - policies


def test_the_policies_and_their_arguments():
    suffix = "LrUpdaterHook"
    rows = table("docs/hooks.md", "policy", "arguments")
    assert {codes(row[0])[0] + suffix for row in rows} == shipped(suffix) - {suffix}
    for row in rows:
        name = codes(row[0])[0]
        if name == "Fixed":  # takes what all of them take
            assert row[1] == ""
            continue
        policy = HOOKS.get(name + suffix)
        own = [code.partition("=")[0] for code in codes(row[1])]
        shared = {n for n, _ in signature(HOOKS.get(suffix))}.difference(own)
        assert shared <= {n for n, _ in signature(policy)}
        agrees(row[1], policy, shared=shared)


def test_the_update_table_has_every_argument_of_the_optimizer_hook():
    rows = table("docs/hooks.md", "key", "meaning")
    accepted = {name for name, _ in signature(HOOKS.get("OptimizerHook"))}
    assert {codes(row[0])[0] for row in rows} == accepted


def test_the_device_options_are_those_of_the_adapters():
    from devrun.devices.generic import GenericOptions

    rows = table("docs/devices.md", "option", "values")
    fields = [field.name for field in dataclasses.fields(GenericOptions)]
    assert [codes(row[0])[0] for row in rows] == fields


def test_the_device_table_has_every_name():
    from devrun.device_facts import ADAPTERS

    rows = table("docs/devices.md", "name", "adapter")
    assert {n for row in rows for n in codes(row[0])} == set(ADAPTERS)


def test_the_key_table_has_every_key_of_a_config():
    rows = table("docs/configs.md", "key", "takes")
    assert {name for row in rows for name in codes(row[0])} == set(KEYS)


def test_the_loader_options_are_accepted_by_the_check_and_by_the_loader():
    from devrun.data.build import loader_options

    for row in table("docs/configs.md", "loader option", "meaning"):
        for name in codes(row[0]):
            assert name in KEYS["data"].keys
            assert loader_options({name: 1}, "train")


@pytest.mark.parametrize("row", table("docs/configs.md", "word", "value"), ids=str)
def test_a_word_of_the_command_line_has_the_value_in_the_table(row):
    (word,), (value,) = codes(row[0]), codes(row[1])
    assert repr(parse_value(word.partition("=")[2])) == value
