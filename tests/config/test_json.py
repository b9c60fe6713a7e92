import pytest


def test_json_is_read_with_lines(load):
    cfg = load(
        '{\n "a": {"b": [1, 2.5, null]},\n "c": "\\u00e9",\n "d": NaN}', "c.json"
    )
    assert cfg.a.b == [1, 2.5, None]
    assert cfg.c == "é"
    assert [line for _, _, line in cfg.origins()][-2:] == ["c.json:3", "c.json:4"]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('{"a": 1,\n "a": 2}', "c.json:2: a: given twice (first: c.json:1)"),
        ('{"a": 1', "c.json:1: expected ',' or '}'"),
        ('{"a": }', "expected a value, found '}'"),
        ('{"a": nope}', "unknown word 'nope'"),
        ('{"a": 01}', "'01' is not a number"),
        ('{"a": 1e999}', "is not a number"),
        ('{"a": "x}', "not a JSON string"),
        ("{a: 1}", "a key in double quotes"),
        ('{"a" 1}', "expected ':'"),
        ("[1]", "the top level must be an object"),
        ('{"a": 1} x', "text after the end"),
        ('{"a": ' + "[" * 30000, "nested deeper"),
    ],
)
def test_what_is_no_json_object_is_refused(refusal, text, reason):
    assert reason in refusal(text, "c.json")
