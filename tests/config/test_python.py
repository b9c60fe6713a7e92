import logging

import pytest

from devrun.config import where


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("dict(a=1, **dict(b=2))", {"a": 1, "b": 2}),
        ("{'a': 1, **{'b-c': 2}}", {"a": 1, "b-c": 2}),
        ("dict([('a', 1)], b=2)", {"a": 1, "b": 2}),
        ("[*range(3), *'ab']", [0, 1, 2, "a", "b"]),
        ("(1,) + (2, 3)[1:]", (1, 3)),
        ("[dict(i=i) for i in range(4) if i % 2]", [{"i": 1}, {"i": 3}]),
        ("[a * b for a in [1, 2] for b in (3, 4)]", [3, 4, 6, 8]),
        ("{k: v for k, v in zip('ab', [1, 2])}", {"a": 1, "b": 2}),
        ("sum(i ** 2 for i in range(4))", 14),
        ("0.1 * 8 / 16 - 3 // 2 + -1 % 3", 0.1 * 8 / 16 - 3 // 2 + -1 % 3),
        ("1 << 4 | 3 & ~1 ^ 5", 1 << 4 | 3 & ~1 ^ 5),
        ("not 1 < 2 <= 2 or 3 in [3] and None is None", True),
        ("'a' if [] else 'b'", "b"),
        ("f'{3:03d}-{\"x\"!r}-{0.5:.{1 + 1}f}'", "003-'x'-0.50"),
        ("'layers.{}.{n}'.format(4, n='w')", "layers.4.w"),
        ("'{text} {budget}'.format(text='a', budget='b')", "a b"),
        ("' a,b '.strip().upper().split(',')", ["A", "B"]),
        ("'-'.join(sorted(['b', 'a'], reverse=True))", "b-a"),
        ("'x.py'.replace('.py', '').startswith('x')", True),
        ("[max(1, 2), min([3, 4]), abs(-1), round(2.567, 1)]", [2, 3, 1, 2.6]),
        (
            "[int('7'), float('inf'), str(1), bool(0), len('ab')]",
            [7, float("inf"), "1", False, 2],
        ),
        (
            "list(enumerate('ab', 1)) + list(zip([1], [2]))",
            [(1, "a"), (2, "b"), (1, 2)],
        ),
        ("dict(a=1).get('b', 5)", 5),
        ("[list(dict(a=1).items()), 'abc'[::-1], [1, 2][-1]]", [[("a", 1)], "cba", 2]),
        ("any([0, 1]) and all([]) and tuple(reversed([1, 2]))", (2, 1)),
        ("'a' 'b'", "ab"),
    ],
)
def test_expressions_have_their_python_value(load, expression, value):
    found = load(f"a = {expression}\n").a
    assert found == value
    assert isinstance(found, type(value))


def test_statements_that_published_configs_use(load):
    cfg = load(
        '''\
        """A docstring."""
        a, (b, c) = 1, (2, 3)
        steps = []
        for i in range(5):
            if i == 1:
                steps.append(7)
            elif i < 4:
                steps.append(i)
        total: int = 1
        total += 2
        model = dict(type='Net', layers=[dict(w=1)])
        model['layers'][0]['w'] = 5
        model['depth'] = total
        model.update(dict(type='Other'), head=None)
        pipeline = [1]
        alias = pipeline
        alias += [2]
        pipeline.extend([3])
        model.pop('head')
        __secret = 1
        '''
    )
    assert cfg._cfg_dict == {
        "a": 1,
        "b": 2,
        "c": 3,
        "steps": [0, 7, 2, 3],
        "i": 4,
        "total": 3,
        "model": {"type": "Other", "layers": [{"w": 5}], "depth": 3},
        "pipeline": [1, 2, 3],
        "alias": [1, 2, 3],
    }


def test_a_value_used_twice_becomes_two(load):
    cfg = load("norm = dict(type='BN')\na = dict(norm=norm)\nb = dict(norm=norm)\n")
    cfg.a.norm.type = "LN"
    assert cfg.b.norm.type == cfg.norm.type == "BN"


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("import os; x = os", "`import`"),
        ("from os import path; x = path", "`import`"),
        ("def f(): pass", "`def`"),
        ("class A: pass", "`class`"),
        ("while True: pass", "`while`"),
        ("with open('x') as f: pass", "`with`"),
        ("try:\n    a = 1\nexcept ValueError:\n    pass", "`try`"),
        ("a = open('/etc/passwd').read()", "the call open(...)"),
        ("a = __import__('os').system('ls')", "the call __import__(...)"),
        ("a = eval('1')", "the call eval(...)"),
        ("a = ().__class__.__bases__", "the attribute ().__class__.__bases__"),
        ("a = ''.join.__globals__", "the attribute"),
        ("a = [].__class__()", "the call"),
        ("a = '{0.__class__}'.format(1)", "only {}, {0} and {name} are filled"),
        ("a = '{0[a]}'.format({'a': 1})", "only {}, {0} and {name} are filled"),
        ("a = lambda x: 1", "`lambda x: 1`"),
        ("a = dict", "the function dict as a value"),
        ("a = sorted([1], key=len)", "the function len as a value"),
        ("a = (b := 1)", "`(b := 1)`"),
        ("print(1)", "the call print(...)"),
        ("a = b''", "a bytes value"),
        ("a = 1j", "a complex value"),
        ("a = ...", "a ellipsis value"),
        ("x.y = 1", "an assignment to `x.y`"),
        ("assert 1", "`assert`"),
        ("for i in [1]: break", "`break`"),
        ("del first", "`del`"),
    ],
)
def test_code_is_refused_with_its_line_and_the_way_past(refusal, text, what):
    message = refusal("first = 1\n" + text)
    assert message.startswith("cfg.py:2: ")
    assert what in message
    if "filled" not in what:
        assert message.endswith("use --trust-config to run this file as Python code")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("a = 1\nb = c\n", "cfg.py:2: b: the name 'c' is not defined above"),
        ("lr = 1\nb = lrr\n", "did you mean 'lr'?"),
        ("a = dict(x=1)['y']\n", "cfg.py:1: a: no key 'y'"),
        ("a = [1][3]\n", "list index out of range"),
        ("a = 1 / 0\n", "division by zero"),
        ("a = '%s' % 1\n", "use an f-string"),
        ("a = {} | {}\n", "by {**one, **other}"),
        ("a = 'x' + 1\n", "cfg.py:1: a: can only concatenate"),
        ("a = int('x')\n", "invalid literal"),
        ("a = dict(\n    b=1,\n    c=1 + None)\n", "cfg.py:3: a: unsupported operand"),
        (
            "a = dict(\n  k=1,\n  **dict(k=2))\n",
            "cfg.py:3: a: the key 'k' is given twice",
        ),
        ("a = (1\n", "cfg.py:1: not valid Python"),
        ("a = 1\n  b = 2\n", "cfg.py:2: not valid Python"),
        ("a, b = 1, 2, 3\n", "2 names for 3 values"),
        ("a = dict(1, 2)\n", "one positional argument"),
        ("a = (-1) ** 0.5\n", "a complex number"),
        ("a = '\\ud800'\n", "lone surrogate"),
        ("a = 'x\\0'\n", "NUL"),
        ("a = dict.fromkeys([1])\n", "the function dict as a value"),
        ("for i in 5: pass\n", "int cannot be iterated over"),
        ("if 1:\n    _base_ = 'x.py'\n", "_base_"),
    ],
)
def test_mistakes_are_one_line_with_their_place(refusal, text, reason):
    assert reason in refusal(text)


def test_top_level_keys_that_are_no_names_have_a_statement(load):
    cfg = load("a = 1\nglobals().update({'b-c': dict(d=2)})\n")
    assert cfg["b-c"].d == 2
    assert str(where(cfg, "b-c")) == "cfg.py:2: b-c: "


TRUSTED = """\
import os
from math import pi
def double(x):
    return 2 * x
class Thing: pass
a = double(pi)
path = os.path.join('x', 'y')
kind = Thing
model = dict(depth=double(9))
"""


def test_a_trusted_file_is_run_and_says_so(load, caplog):
    with caplog.at_level(logging.WARNING, "devrun"):
        cfg = load(TRUSTED, trust=True)
    assert set(cfg) == {"pi", "Thing", "a", "path", "kind", "model"}
    assert cfg.model.depth == 18
    assert "running cfg.py as Python code" in caplog.text


def test_a_trusted_file_is_not_run_unless_asked(load, refusal, tmp_path):
    text = f"open({str(tmp_path / 'trace')!r}, 'w').close()\n"
    refusal(text)
    assert not (tmp_path / "trace").exists()
    load(text, trust=True)
    assert (tmp_path / "trace").exists()


def test_what_a_trusted_file_raises_is_one_line_with_its_place(refusal):
    text = "def f():\n    raise RuntimeError('two\\nlines')\n\nf()\n"
    message = refusal(text, trust=True)
    assert message == "cfg.py:2: running it raised RuntimeError: two\\nlines"
