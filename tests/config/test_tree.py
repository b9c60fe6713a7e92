import pytest

from devrun.config import ConfigDict, where
from devrun.errors import ConfigError


@pytest.fixture
def tree():
    return ConfigDict(model={"type": "Net", "blocks": [{"depth": 1}, ({"w": 2},)]})


def test_keys_are_items_and_attributes_at_every_depth(tree):
    assert tree.model.type == tree["model"]["type"] == "Net"
    assert tree.model.blocks[0].depth == 1
    assert tree.model.blocks[1][0].w == 2


def test_what_is_set_later_is_converted_too(tree):
    tree.data = {"train": [{"a": 1}]}
    tree.update(other={"b": 2})
    tree.setdefault("third", {}).c = 3
    assert tree.data.train[0].a + tree.other.b + tree.third.c == 6


def test_a_missing_attribute_is_an_attribute_error_with_the_nearest_name(tree):
    with pytest.raises(AttributeError, match=r"did you mean 'type'\?"):
        print(tree.model.tpe)
    assert not hasattr(tree, "nothing")
    assert getattr(tree, "nothing", 5) == 5


def test_a_missing_key_says_where_its_dict_is(load):
    cfg = load("a = 1\nmodel = dict(\n    type='Net')\n")
    with pytest.raises(ConfigError, match=r"^cfg.py:2: model: no key 'typo'"):
        cfg.model.pop("typo")


def test_a_shallow_copy_shares_what_is_inside(tree):
    copied = tree.copy()
    copied.new = 1
    copied.model.type = "Other"
    assert "new" not in tree
    assert tree.model.type == "Other"


def test_where_names_file_line_and_key_path(load):
    cfg = load(
        """\
        model = dict(
            type='Net',
            blocks=[
                dict(depth=1),
                dict(
                    depth=2)])
        """
    )
    assert str(where(cfg.model, "type")) == "cfg.py:2: model.type: "
    assert str(where(cfg.model)) == "cfg.py:1: model: "
    block = cfg.model.blocks[1]
    assert str(where(block, "depth")) == "cfg.py:6: model.blocks.1.depth: "
    assert str(where(block, "missing")) == "cfg.py:5: model.blocks.1.missing: "
    assert str(where(cfg, "model")) == "cfg.py:1: model: "


def test_where_forgets_the_line_of_a_value_set_by_code(load):
    cfg = load("model = dict(type='Net')")
    cfg.model.type = "Other"
    assert str(where(cfg.model, "type")) == "model.type: "
