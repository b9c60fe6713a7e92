import math
import random
import resource

import pytest

from devrun.config import Config
from devrun.errors import ConfigError, StorageError

ODD_TEXTS = [
    "no", "yes", "on", "off", "null", "~", "", " ", "1e-3", "1.", ".5", "0o17", "0x1f",
    "017", "12:30", "12:30:45", "1_000", ".inf", ".nan", "NaN", "true", "True", "None",
    "=", "<<", "-", "- a", "? a", ": a", "a: b", "a #b", "#a", "&a", "*a", "!a", "%a",
    "@a", "`a", "'a'", '"a"', "a'b\"c", "a\\b", "\\n", "two\nlines", "\n", "tab\tbed",
    " lead", "trail ", "{a}", "[a]", "{{ x }}", "a,b", "é", "日本", "\u2028", "\x85",
    "\x7f", "\ufeff", "😀", "2024-01-02", "x" * 200, "word " * 60, "a\r\nb", "$x",
    "{}", "%s", "|", ">", "--- a", "...", "1:", "0.1.2", "+1", "-.inf", "1e5", "e1",
]  # fmt: skip
ODD_KEYS = [
    "class",
    "a-b",
    "no",
    "1e-3",
    "12:30",
    "with space",
    "é",
    "Ĳ",
    "a.b",
]
NUMBERS = [0, -1, 2**70, 0.1, 1e-7, 1e300, -0.0, math.inf, -math.inf, 1e16, 123456.789]


def same(left, right):
    """Equal in value and in the type of every part."""
    if isinstance(left, dict):
        return list(left) == list(right) and all(same(left[k], right[k]) for k in left)
    if isinstance(left, (list, tuple)):
        kind = list if isinstance(left, list) else tuple
        return (
            isinstance(right, kind)
            and len(left) == len(right)
            and all(map(same, left, right))
        )
    if isinstance(left, float) and math.isnan(left):
        return isinstance(right, float) and math.isnan(right)
    return type(left) is type(right) and left == right


def random_tree(draw, depth, *, tuples, int_keys):
    """A dict of odd keys and values."""
    keys = draw.sample(ODD_KEYS + ODD_TEXTS[:40] + ["a", "b", "c"], draw.randint(0, 5))
    keys += [7] if int_keys and draw.random() < 0.3 else []
    return {key: random_value(draw, depth, tuples, int_keys) for key in keys}


def random_value(draw, depth, tuples, int_keys):
    choice = draw.random()
    if depth > 0 and choice < 0.2:
        return random_tree(draw, depth - 1, tuples=tuples, int_keys=int_keys)
    if depth > 0 and choice < 0.4:
        items = [
            random_value(draw, depth - 1, tuples, int_keys)
            for _ in range(draw.randint(0, 4))
        ]
        return tuple(items) if tuples and draw.random() < 0.5 else items
    if choice < 0.7:
        return draw.choice(ODD_TEXTS)
    return draw.choice([*NUMBERS, True, False, None, math.nan])


@pytest.mark.parametrize("suffix", [".py", ".yaml", ".json"])
def test_random_trees_load_back_equal(suffix, tmp_path):
    draw = random.Random(11)
    for _ in range(120):
        tree = {
            f"key_{n}" if draw.random() < 0.7 else draw.choice(ODD_KEYS): random_value(
                draw, 4, suffix == ".py", suffix != ".json"
            )
            for n in range(4)
        }
        path = tmp_path / f"cfg{suffix}"
        Config(tree).dump(path)
        found = Config.fromfile(path)
        assert same(tree, found._cfg_dict), (tree, path.read_text())


def test_pretty_text_is_laid_out_to_read():
    cfg = Config(
        {
            "model": {"type": "Net", "stages": (3,), "deep": {"a-b": 1}},
            "pipeline": [{"type": "A", "size": 32}, {"type": "B", "text": "x" * 50}],
        }
    )
    assert cfg.pretty_text == (
        "model = dict(type='Net', stages=(3,), deep={'a-b': 1})\n"
        "pipeline = [\n"
        "    dict(type='A', size=32),\n"
        f"    dict(type='B', text='{'x' * 50}'),\n"
        "]\n"
    )
    assert all(len(line) <= 88 for line in cfg.pretty_text.split("\n"))


@pytest.mark.parametrize("link", [False, True])
def test_a_dump_that_fails_leaves_the_file_as_it_was(tmp_path, link):
    path = tmp_path / "c.yaml"
    if link:
        path.symlink_to(tmp_path / "target.yaml")
    Config({"a": 1}).dump(path)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1, before[1]))
    try:
        with pytest.raises(StorageError, match="cannot be written"):
            Config({"a": "b" * 9999}).dump(path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert path.read_text() == "{a: 1}\n"
    assert path.is_symlink() is link
    assert len(list(tmp_path.iterdir())) == 1 + link


def test_classes_and_paths_have_a_text_form(tmp_path):
    import collections

    kind = collections.OrderedDict
    cfg = Config({"b": kind, "c": tmp_path})
    path = repr(str(tmp_path))
    assert cfg.dump() == f"b = 'collections.OrderedDict'\nc = {path}\n"


def test_what_has_no_text_form_is_refused_by_dump_only(tmp_path):
    cfg = Config({"a": {"b": [object()]}})
    with pytest.raises(ConfigError, match=r"^a.b.0: a object cannot be written"):
        cfg.dump(tmp_path / "a.yaml")
    assert "<object object" in cfg.pretty_text
    with pytest.raises(ConfigError, match="dump to a .py file"):
        Config({"a": {(1, 2): 3}}).dump(tmp_path / "a.yaml")
    with pytest.raises(ConfigError, match=r"a .py, .json, .yaml or .yml file"):
        cfg.dump(tmp_path / "a.toml")


def test_numbers_of_other_libraries_are_written_as_plain_ones():
    numpy = pytest.importorskip("numpy")
    cfg = Config({"a": numpy.float64(0.5), "b": numpy.str_("x")})
    assert cfg.dump() == "a = 0.5\nb = 'x'\n"


def test_a_dump_remembers_which_keys_were_helpers(load, tmp_path):
    from devrun.config import check_config

    cfg = load("wd = 0.1\noptimizer = dict(type='SGD', weight_decay=wd)\n")
    for name in ("a.py", "a.yaml", "a.json"):
        cfg.dump(tmp_path / name)
        reloaded = Config.fromfile(tmp_path / name)
        assert reloaded == cfg
        check_config(reloaded)
