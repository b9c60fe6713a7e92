import math

import pytest

from devrun.config import where


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("1e-3", 0.001),
        ("1E5", 1e5),
        (".5", 0.5),
        ("5.", 5.0),
        ("0o17", 15),
        ("0x1F", 31),
        ("0123", 123),
        ("no", "no"),
        ("True", True),
        ("~", None),
        ("Null", None),
        ("12:30:45", "12:30:45"),
        ("1_000", "1_000"),
        ("'1'", "1"),
        ('"true"', "true"),
        ("=", "="),
        (".inf", math.inf),
        ("1e", "1e"),
    ],
)
def test_plain_words_have_yaml_1_2_values(load, written, value):
    found = load(f"a: {written}\n", "cfg.yaml").a
    assert found == value
    assert type(found) is type(value)


def test_not_a_number_is_read(load):
    assert math.isnan(load("a: .nan", "cfg.yml").a)


def test_each_value_knows_its_line(load):
    cfg = load("a:\n  b:\n    - c: 1\n      d: 2\n", "cfg.yaml")
    assert str(where(cfg.a.b[0], "c")) == "cfg.yaml:3: a.b.0.c: "
    assert str(where(cfg.a.b[0], "d")) == "cfg.yaml:4: a.b.0.d: "


def test_aliases_and_merge_keys_give_independent_copies(load):
    cfg = load(
        """\
        x-base: &base {lr: 0.1, steps: [1, 2]}
        a: *base
        b:
          <<: *base
          lr: 0.5
        """,
        "cfg.yaml",
    )
    assert cfg.b == {"lr": 0.5, "steps": [1, 2]}
    cfg.a.steps.append(3)
    assert cfg.b.steps == [1, 2]


def test_an_empty_file_is_an_empty_config(load):
    assert len(load("# nothing\n", "cfg.yaml")) == 0


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (
            "a: 1\nb:\n  c: 1\n  c: 2\n",
            "cfg.yaml:4: b.c: given twice (first: cfg.yaml:3)",
        ),
        ("a: !!python/object/apply:os.system [ls]", "cfg.yaml:1: a: the tag"),
        ("- 1\n", "cfg.yaml:1: the top level must be keys and values"),
        ("a: 1\n---\nb: 2\n", "cfg.yaml:2: a second document"),
        ("a: [1\nb: 2\n", "cfg.yaml:2: not valid YAML"),
        ("a: b: c\n", "cfg.yaml:1: not valid YAML"),
        ("a: &x [*x]\n", "the alias *x stands before or inside its anchor"),
        ("? [1, 2]\n: 3\n", "a key must be text"),
        ("~: 3\n", "a key must be text"),
        ("a: 1e999\n", "cfg.yaml:1: a: 1e999 is too large"),
        ("1: 2\n", "1 cannot be a top-level key"),
        ("a: {<<: 3}\n", "`<<` takes an alias of a mapping, not 3"),
        ('a: "\\ud83d"\n', "not valid YAML"),
        ('a: "\\0"\n', "NUL"),
        ("\x07a: 1\n", "not valid YAML"),
    ],
)
def test_what_is_no_config_is_one_line_with_its_place(refusal, text, reason):
    assert reason in refusal(text, "cfg.yaml")


def test_deep_nesting_is_refused(refusal):
    assert "nested deeper" in refusal("a: " + "[" * 20000, "cfg.yaml")


def test_an_alias_bomb_is_refused(refusal):
    lines = ["a0: &a0 [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]"]
    for n in range(12):
        lines.append(f"a{n + 1}: &a{n + 1} [{', '.join([f'*a{n}'] * 10)}]")
    assert "more work than" in refusal("\n".join(lines), "cfg.yaml")


def test_a_long_text_repeated_by_aliases_is_refused(refusal):
    text = f"a: &a {'x' * 500_000}\nb: [{', '.join(['*a'] * 5000)}]\n"
    assert "more work than" in refusal(text, "cfg.yaml")
