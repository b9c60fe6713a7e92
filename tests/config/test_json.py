import json

import pytest

from devrun.config import Config, where


def test_json_is_read_with_lines(load):
    cfg = load(
        '{\n "a": {"b": [1, 2.5, null]},\n "c": "\\u00e9",\n "d": NaN}', "c.json"
    )
    assert cfg.a.b == [1, 2.5, None]
    assert cfg.c == "é"
    assert [str(where(cfg, key)) for key in "cd"] == ["c.json:3: c: ", "c.json:4: d: "]


def test_json_as_programs_write_it(load):
    tree = {"a": {"b": [1, -2.5e-3, True], 'c\n"/': "\U0001f600 \\ud83d\\ude00"}}
    for options in ({}, {"indent": "\t"}, {"separators": (",", ":")}):
        assert load(json.dumps(tree, **options), "c.json") == Config(tree)
    assert load("", "c.json") == Config({})


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('{"a": 1,\n "a": 2}', "c.json:2: a: given twice (first: c.json:1)"),
        ('{"a": 1', "not valid YAML: did not find expected"),
        ('{"a": 1e999}', "too large"),
        ('{"a": "x}', "not valid YAML"),
        ("[1]", "the top level must be keys and values"),
        ('{"a": 1} x', "not valid YAML"),
        ('{"a": ' + "[" * 30000, "nested deeper"),
    ],
)
def test_what_is_no_json_object_is_refused(refusal, text, reason):
    assert reason in refusal(text, "c.json")
