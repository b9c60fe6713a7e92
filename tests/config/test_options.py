import argparse
import random

import pytest

from devrun.config import Config, DictAction, parse_value, where


@pytest.fixture
def parser():
    made = argparse.ArgumentParser(prog="prog")
    made.add_argument("config", nargs="?")
    made.add_argument("--cfg-options", nargs="+", action=DictAction)
    return made


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1", 1),
        ("-2", -2),
        ("1e-3", 0.001),
        ("2.5", 2.5),
        ("true", True),
        ("None", None),
        ("none", "none"),
        ("", ""),
        ("x y", "x y"),
        ("'x y'", "x y"),
        ('"1"', "1"),
        ("'a,b'", "a,b"),
        ("it's", "it's"),
        ("'it", "'it"),
        ("1,2,3", [1, 2, 3]),
        ("1,", [1]),
        ("[1,2]", [1, 2]),
        ("(1,2)", (1, 2)),
        ("(1,)", (1,)),
        ("(1)", 1),
        ("[1],[2]", [[1], [2]]),
        ("(1,2),(3,4)", [(1, 2), (3, 4)]),
        ("[a b, [~, 'c, d']]", ["a b", [None, "c, d"]]),
        ("[('train', 1), ('val', 1)]", [("train", 1), ("val", 1)]),
        ("{'a': 1}", {"a": 1}),
        ("{a: 1, 'b c': [1, {d: true}]}", {"a": 1, "b c": [1, {"d": True}]}),
        ("{1: x}", {1: "x"}),
        ("[{'type': 'A'}, {'type': 'B'}]", [{"type": "A"}, {"type": "B"}]),
        ("[1", "[1"),
        ("[1] x", "[1] x"),
        ("f(1,2)", "f(1,2)"),
        ("/data/a b/x.pth", "/data/a b/x.pth"),
        ("https://a.org/x?y=1", "https://a.org/x?y=1"),
        (r"C:\x", r"C:\x"),
        ("a,,b", "a,,b"),
        ("${env:HOME}", "${env:HOME}"),
    ],
)
def test_words_have_mmcvs_values(text, value):
    found = parse_value(text)
    assert found == value
    assert type(found) is type(value)


def test_plus_equals_appends(parser):
    words = ["a.b+={type: A}", "a.b+=1,2", "c=1,2", "c+=x"]
    options = parser.parse_args(["--cfg-options", *words]).cfg_options
    cfg = Config({"a": {"b": [0]}})
    cfg.merge_from_dict(options)
    assert cfg.a.b == [0, {"type": "A"}, 1, 2]
    assert cfg.c == [1, 2, "x"]


def test_plus_equals_needs_a_list(parser, capsys):
    with pytest.raises(SystemExit):
        parser.parse_args(["--cfg-options", "a=1", "a+=2"])
    assert "+= appends to a list, not to 1" in capsys.readouterr().err


def test_words_of_the_command_line_become_a_dict(parser):
    words = "a.b=1 c.0.d=[1,2] e=(1,2) h= i=b=c".split()
    args = parser.parse_args(
        ["x.py", "--cfg-options", *words, "f=x y", "g={'a': 1}", 'j="q r"']
    )
    assert args.cfg_options == {
        "a.b": 1,
        "c.0.d": [1, 2],
        "e": (1, 2),
        "h": "",
        "i": "b=c",
        "f": "x y",
        "g": {"a": 1},
        "j": "q r",
    }


def test_the_flag_may_be_given_twice(parser):
    args = parser.parse_args(["--cfg-options", "a=1", "--cfg-options", "b=2", "a=3"])
    assert args.cfg_options == {"a": 3, "b": 2}


@pytest.mark.parametrize(
    ("word", "reason"),
    [
        ("ab", "'ab' has no '='; write key=value"),
        ("=1", "the key is words with dots"),
        ("a..b=1", "the key is words with dots"),
        ("a\nb", r"'a\nb' has no '='"),
    ],
)
def test_a_wrong_word_is_a_usage_error(parser, capsys, word, reason):
    with pytest.raises(SystemExit) as caught:
        parser.parse_args(["--cfg-options", word])
    assert caught.value.code == 2
    last = capsys.readouterr().err.rstrip("\n").split("\n")[-1]
    assert last.startswith("prog: error: argument --cfg-options:")
    assert reason in last


def test_options_reach_the_config(parser, load):
    cfg = load("model = dict(layers=[dict(w=1)])\n")
    args = parser.parse_args(
        ["--cfg-options", "model.layers.0.w=(2,3)", "new.a={b: 1}"]
    )
    cfg.merge_from_dict(args.cfg_options)
    assert cfg.model.layers[0].w == (2, 3)
    assert cfg.new.a.b == 1
    assert str(where(cfg.new.a, "b")) == "command line: new.a.b: "


def test_any_text_is_a_value():
    draw = random.Random(3)
    letters = "[](){},:'\" =a1.é\\-"
    for _ in range(2000):
        text = "".join(draw.choice(letters) for _ in range(draw.randint(0, 30)))
        try:
            value = parse_value(text)
        except ValueError as error:
            assert "nested deeper" in str(error)
            continue
        Config({"a": 1}).merge_from_dict({"b": value})
