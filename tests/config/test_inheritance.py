import re

import pytest

from devrun.config import Config, where
from devrun.errors import ConfigError


@pytest.fixture
def tree(write):
    write("base/model.py", "model = dict(type='Net', head=dict(n=10, act='relu'))\n")
    write("base/run.yaml", "runner: {type: EpochBasedRunner, max_epochs: 5}\n")
    return write


def fails(path):
    with pytest.raises(ConfigError) as caught:
        Config.fromfile(path)
    assert str(caught.value).isprintable()
    return str(caught.value)


def test_dicts_merge_and_everything_else_replaces(tree):
    path = tree(
        "cfg.py",
        "_base_ = ['base/model.py', 'base/run.yaml']\n"
        "model = dict(head=dict(n=5, steps=[1]))\n"
        "runner = dict(max_epochs=9)\n",
    )
    cfg = Config.fromfile(path)
    assert cfg.model == {"type": "Net", "head": {"n": 5, "act": "relu", "steps": [1]}}
    assert cfg.runner == {"type": "EpochBasedRunner", "max_epochs": 9}
    assert "_base_" not in cfg


def test_each_value_comes_from_the_file_that_wrote_it_last(tree):
    cfg = Config.fromfile(
        tree("cfg.py", "_base_ = 'base/model.py'\nmodel = dict(head=dict(n=5))\n")
    )
    assert str(where(cfg.model.head, "n")) == "cfg.py:2: model.head.n: "
    assert str(where(cfg.model.head, "act")) == "base/model.py:1: model.head.act: "


def test_delete_drops_what_was_inherited(tree):
    cfg = Config.fromfile(
        tree(
            "cfg.py",
            "_base_ = 'base/model.py'\n"
            "model = dict(head=dict(_delete_=True, n=1,\n"
            "  sub=dict(_delete_=True, x=1)))\n"
            "extra = dict(_delete_=True, y=1)\n",
        )
    )
    assert cfg.model.head == {"n": 1, "sub": {"x": 1}}
    assert cfg.extra == {"y": 1}


def test_a_dict_onto_something_else_suggests_delete(tree):
    tree("base.py", "steps = [1, 2]\nlr = 1\n")
    message = fails(tree("cfg.py", "_base_ = 'base.py'\n\nsteps = dict(a=1)\n"))
    assert message == (
        "cfg.py:3: steps: a dict cannot be merged into a list of 2 items (base.py:1); "
        "add _delete_=True to the dict to replace it"
    )
    ok = tree(
        "ok.py", "_base_ = 'base.py'\nsteps = dict(_delete_=True, a=1)\nlr = [1]\n"
    )
    assert Config.fromfile(ok)._cfg_dict == {"steps": {"a": 1}, "lr": [1]}


def test_delete_takes_a_boolean(tree):
    path = tree("cfg.py", "_base_ = 'base/model.py'\nmodel = dict(_delete_=1)\n")
    assert "model._delete_: takes True or False, not 1" in fails(path)


def test_a_circle_is_named(tree):
    tree("a.py", "_base_ = 'b.yaml'\n")
    tree("b.yaml", "x: 1\n_base_: c.py\n")
    tree("c.py", "_base_ = './sub/../a.py'\n")
    tree("sub/none.py", "")
    assert fails("a.py") == (
        "c.py:1: _base_: the files inherit in a circle: "
        "a.py -> b.yaml -> c.py -> a.py; remove one `_base_`"
    )


def test_two_bases_with_one_key_are_refused_with_both_places(tree):
    tree("other.yaml", "x: 1\nmodel: {}\n")
    path = tree("cfg.py", "a = 1\n_base_ = ['base/model.py', 'other.yaml']\n")
    message = fails(path)
    assert message.startswith("cfg.py:2: _base_: two bases give the key 'model'")
    assert "base/model.py:1 and other.yaml:2" in message


def test_a_missing_base_is_named_with_the_line_that_asks_for_it(tree):
    message = fails(tree("cfg.py", "a = 1\n_base_ = ['base/none.py']\n"))
    assert message.startswith("cfg.py:2: _base_: no such file: 'base/none.py'")


@pytest.mark.parametrize(
    "given", ["3", "[1]", "dict(a=1)", "None", "''", "['x\\0.py']"]
)
def test_base_takes_paths(tree, given):
    assert fails(tree("cfg.py", f"_base_ = {given}\n")).startswith("cfg.py")


def test_bases_that_nest_ever_deeper_are_refused(tree):
    tree("f0.py", "a = 1\n")
    for n in range(60):
        tree(f"f{n + 1}.py", f"_base_ = 'f{n}.py'\na = [{{{{ _base_.a }}}}]\n")
    assert "nested deeper" in fails("f60.py")


def test_file_variables_are_filled_in(tree, tmp_path):
    text = (
        "a = '{{ fileDirname }}/x'\nb = '{{fileBasename}}'\n"
        "c = {{ fileBasenameNoExtension }}\nd = f'{{{{ fileExtname }}}}{1}'\n"
        "e = '{{ other }}'\n"
    )
    cfg = Config.fromfile(tree("sub/my cfg.py", text))
    assert cfg.a == f"{tmp_path}/sub/x"
    assert (cfg.b, cfg.c, cfg.e) == ("my cfg.py", "my cfg", "{{ other }}")
    cfg = Config.fromfile(
        tree("sub/c.yaml", "a: {{ fileExtname }}\nb: x{{fileBasename}}")
    )
    assert (cfg.a, cfg.b) == (".yaml", "xc.yaml")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (
            "c.py",
            "_base_ = 'base/model.py'\na = {{ _base_.model.head }}\n"
            "b = '{{ _base_.model.head.n }}'\nc = 'n{{_base_.model.head.n}}'\n"
            "d = {{ _base_.model.head.n }} * 2\ne = _base_.model.type\n",
        ),
        (
            "c.yaml",
            "_base_: base/model.py\na: {{ _base_.model.head }}\n"
            "b: '{{ _base_.model.head.n }}'\nc: n{{_base_.model.head.n}}\n"
            "d: 20\ne: Net\n",
        ),
        (
            "c.json",
            '{"_base_": "base/model.py", "a": {{ _base_.model.head }}, '
            '"b": "{{ _base_.model.head.n }}", "c": "n{{_base_.model.head.n}}", '
            '"d": 20, "e": "Net"}',
        ),
    ],
)
def test_values_of_the_bases_keep_their_type(tree, name, text):
    cfg = Config.fromfile(tree(name, text))
    cfg.a.n = 99
    assert cfg.model.head.n == 10
    assert (cfg.b, cfg.c, cfg.d, cfg.e) == (10, "n10", 20, "Net")


def test_python_may_change_the_bases_as_mmengine_does(tree):
    tree("base.py", "steps = [dict(w=1), dict(w=2)]\nmodel = dict(a=dict(b=1), c=2)\n")
    path = tree(
        "cfg.py",
        "_base_ = 'base.py'\n"
        "import copy\n"
        "from copy import deepcopy as twin\n"
        "one = copy.deepcopy(_base_.steps)\n"
        "two = twin(one)\n"
        "one[0]['w'] = 7\n"
        "_base_.steps[1]['w'] = 5\n"
        "_base_['model']['a'].update(b=3)\n"
        "_base_.model.c *= 10\n"
        "_base_.model.more = one\n"
        "one[1]['w'] = 9\n"
        "_base_['model']['a'].pop('b')\n",
    )
    cfg = Config.fromfile(path)
    assert cfg.steps == [{"w": 1}, {"w": 5}]
    assert cfg.one == [{"w": 7}, {"w": 9}]
    assert cfg.two == [{"w": 1}, {"w": 2}]
    # what was put into the bases is a copy of its own from then on
    assert cfg.model == {"a": {}, "c": 20, "more": [{"w": 7}, {"w": 2}]}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("_base_.nothing[0] = 1", "the bases have no 'nothing'"),
        ("_base_.model.a.b = 1\nx = y.z", "the attribute y.z"),
        ("import copy\nx = copy.system('ls')", "the name 'copy' is not defined"),
        ("import copy\nx = copy", "the name 'copy' is not defined"),
        ("from copy import os\nx = os", "`import`"),
        ("import os as copy\nx = copy.deepcopy(1)", "`import`"),
        ("import copy\nx = [1]\nx.append(x)\ny = copy.deepcopy(x)", "deeply"),
    ],
)
def test_what_python_may_not_do_with_the_bases(tree, text, words):
    tree("base.py", "model = dict(a=dict(b=1))\n")
    with pytest.raises(ConfigError, match=re.escape(words)) as error:
        Config.fromfile(tree("cfg.py", f"_base_ = 'base.py'\n{text}\n"))
    assert len(str(error.value).splitlines()) == 1


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (
            "_base_ = 'base/model.py'\na = {{ _base_.modle.x }}\n",
            "cfg.py:2: {{ _base_.modle.x }}: the bases have no 'modle'; did you",
        ),
        (
            "_base_ = 'base/model.py'\na = {{ _base_.model.type.x }}\n",
            "the bases have no 'x'; that is 'Net'",
        ),
        (
            "x = 1\na = '{{ _base_.model }}'\n",
            "cfg.py:2: {{ _base_.model }} is used, but this file has no `_base_`",
        ),
        (
            "_base_ = 'base/model.py'\na = 'x{{ _base_.model }}'\n",
            "cfg.py:2: {{ _base_.model }} is a dict of 2 keys, which cannot",
        ),
    ],
)
def test_references_that_name_nothing_are_refused(tree, text, reason):
    assert reason in fails(tree("cfg.py", text))


def test_a_key_of_yaml_may_be_a_reference(tree):
    cfg = Config.fromfile(
        tree("c.yaml", "_base_: base/model.py\nx:\n  {{_base_.model.type}}: 1\n")
    )
    assert cfg.x == {"Net": 1}
    bad = tree("d.yaml", "_base_: base/model.py\n'{{_base_.model}}': 1\n")
    assert "cannot stand here" in fails(bad)


def test_a_deprecated_file_warns_and_loads(tree):
    text = "_base_ = 'base/model.py'\n_deprecation_ = dict(expected='new.py')\n"
    with pytest.warns(DeprecationWarning, match=r"old.py is deprecated, .*new.py"):
        cfg = Config.fromfile(tree("old.py", text))
    assert list(cfg) == ["model"]


def test_a_child_appends_to_what_it_inherits(tree):
    tree("base.py", "hooks = [dict(type='A')]\npair = (1, 2)\n")
    path = tree(
        "child.yaml",
        "_base_: base.py\n"
        "hooks: {_append_: [{type: B}]}\n"
        "pair: {_append_: [3]}\n"
        "new: {deep: {_append_: [1]}}\n",
    )
    cfg = Config.fromfile(path)
    assert cfg.hooks == [{"type": "A"}, {"type": "B"}]
    assert [str(where(hook, "type").origin) for hook in cfg.hooks] == [
        "base.py:1",
        "child.yaml:2",
    ]
    assert (cfg.pair, cfg.new.deep) == ((1, 2, 3), [1])


def test_a_child_merges_by_type_into_what_it_inherits(tree):
    tree("base.py", "hooks = [dict(type='A', x=1, y=2), dict(type='B')]\n")
    path = tree(
        "child.yaml",
        "_base_: base.py\nhooks: {_merge_: [{type: A, y: 3}, {type: C}]}\n",
    )
    assert Config.fromfile(path).hooks == [
        {"type": "A", "x": 1, "y": 3},
        {"type": "B"},
        {"type": "C"},
    ]
    cfg = Config.fromfile(path)
    cfg.merge_from_dict({"hooks": {"_merge_": [{"type": "B", "z": 4}]}})
    assert cfg.hooks[1] == {"type": "B", "z": 4}


def test_what_merge_by_type_cannot_tell_is_said(tree):
    tree("base.py", "hooks = [dict(type='A'), dict(type='A')]\n")
    message = fails(
        tree("child.yaml", "_base_: base.py\nhooks: {_merge_: [{type: A, y: 3}]}\n")
    )
    assert message.startswith("child.yaml:2: hooks._merge_: 2 items have the type 'A'")
    message = fails(tree("other.yaml", "_base_: base.py\nhooks: {_merge_: [1]}\n"))
    assert message.startswith("other.yaml:2: hooks._merge_: takes dicts with a `type`")


@pytest.mark.parametrize(
    "given", ["{_append_: 1}", "{_append_: [1], more: 2}", "{_merge_: 1}"]
)
def test_append_takes_a_list_alone(tree, given):
    tree("base.py", "steps = [1]\n")
    message = fails(tree("child.yaml", f"_base_: base.py\nsteps: {given}\n"))
    assert re.match(r"child.yaml:2: steps._\w+_: takes a list", message)


def test_append_meets_no_dict(tree):
    path = tree("cfg.py", "_base_ = 'base/model.py'\nmodel = dict(_append_=[1])\n")
    assert (
        fails(path)
        == "cfg.py:2: model._append_: adds to a list, not to a dict of 2 keys"
    )
