"""Options are checked before the SDK is looked for; the table in the docs is true."""

import dataclasses

import pytest

from devrun.devices.hpu.adapter import HPUAdapter
from devrun.devices.hpu.environment import variables
from devrun.devices.hpu.options import HPUOptions
from devrun.devices.options import IndexedOptions
from devrun.errors import ConfigError
from tests.docs.blocks import codes, table


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"mode": "lasy"}, "did you mean 'lazy'"),
        ({"mode": "eager", "graphs": True}, "needs mode lazy"),
        ({"graphs": "auto"}, "must be true or false"),
        ({"mode": "lazy", "compile": True}, "set mode to compile"),
        ({"max_graphs": 0}, "1 or more"),
        ({"index": 1}, "HABANA_VISIBLE_MODULES"),
        ({"fusedd": True}, "did you mean 'fused'"),
        ({"precision": "bf16"}, "belongs to optimizer_config: {precision: bf16}"),
    ],
)
def test_an_option_that_cannot_be_is_one_line(options, words):
    with pytest.raises(ConfigError, match=words) as refusal:
        HPUAdapter.from_config({"emulate": True, **options})
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(("mode", "lazy"), [("lazy", "1"), ("eager", "0")])
def test_what_changed_between_releases_is_always_set(mode, lazy):
    wanted = variables(HPUOptions(mode=mode))
    assert wanted["PT_HPU_LAZY_MODE"] == lazy
    assert wanted["PT_ENABLE_INT64_SUPPORT"] == str(1 - int(lazy))


def test_the_table_has_every_option_with_its_default():
    common = {field.name for field in dataclasses.fields(IndexedOptions)}
    rows = table("docs/hpu.md", "option", "default")
    written = {codes(row[0])[0]: codes(row[1])[0] for row in rows}
    fields = [f for f in dataclasses.fields(HPUOptions) if f.name not in common]
    shown = {True: "true", False: "false", None: "null"}
    expected = {}
    for field in fields:
        plain = isinstance(field.default, (bool, type(None)))
        expected[field.name] = shown[field.default] if plain else str(field.default)
    assert written == expected
