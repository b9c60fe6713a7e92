"""No configuration takes more than its share of time and memory, however written."""

import random

import pytest

from tests.config.hostile import HOSTILE
from tests.config.measure import Meter


@pytest.fixture(scope="module")
def meter():
    with Meter() as made:
        yield made


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_configs_are_bounded(meter, name):
    cost = meter.cost(*HOSTILE[name])
    assert cost.bounded, cost


SETUP = """\
t = '{letter}' * {length}
p = 'ab' * {half}
l = list(range({count}))
d = {{i: i for i in range({count})}}
k = {{'k%d' % i: i for i in range({count})}}
s = set(range({count}))
u = tuple(range({count}))
b = (1 << {bits}) - 1
n = [[i, 'x'] for i in range({few})]
f = 0.1
"""
VALUES = [*"tpldksubnfi", "7", "-1", "'a'", "'ab' * 50", "(1, 2)", "[]", "range(99999)",
          "None", "1e300", "'%s%d'", "'{{}}{{a}}'", "i % 7", "l[i % 5:]",
          "t[:i]"]  # fmt: skip
OPERATORS = ["+", "-", "*", "//", "%", "**", "<<", ">>", "&", "|", "^", "==", "<",
             "in", "not in", "/", "and"]  # fmt: skip
FUNCTIONS = ["len", "str", "sorted", "list", "tuple", "set", "sum", "max", "min", "any",
             "all", "abs", "round", "int", "float", "zip", "enumerate", "reversed",
             "range", "bool", "dict"]  # fmt: skip
METHODS = ["capitalize", "count", "endswith", "find", "format", "index", "join",
           "lower", "lstrip", "removeprefix", "replace", "rsplit", "rstrip", "split",
           "strip", "splitlines", "startswith", "title", "upper", "append", "clear",
           "copy",
           "extend", "insert", "pop", "remove", "reverse", "sort", "add", "difference",
           "discard", "intersection", "union", "update", "get", "items", "keys",
           "setdefault", "values", "center", "zfill", "ljust", "expandtabs",
           "translate", "encode", "partition"]  # fmt: skip


def expression(draw, depth):
    """A random one; what comes of it is measured, whether it has a value or not."""
    if depth == 0 or draw.random() < 0.2:
        return draw.choice(VALUES)
    one, two = (expression(draw, depth - 1) for _ in range(2))
    width = draw.randint(0, 1200)
    forms = [
        f"({one} {draw.choice(OPERATORS)} {two})",
        f"{draw.choice(FUNCTIONS)}({one})",
        f"{draw.choice(FUNCTIONS)}({one}, {two})",
        f"({one}).{draw.choice(METHODS)}({two})",
        f"({one}).{draw.choice(METHODS)}()",
        f"({one}).{draw.choice(METHODS)}({two}, {one})",
        f"({one})[{two}]",
        f"({one})[{draw.choice(VALUES)}:]",
        f"f'{{{draw.choice('tpldksubnfi')}!{draw.choice('rsa')}:>{width}}}'",
        f"'%s %{width}s' % ({one}, {two})",
        f"[*({one}), *({two})]",
        "{**d, **k}",
        f"{{{one}: {two}}}",
        f"{{{one}, {two}}}",
        f"[{one} for i in {two}]",
        f"{{j: {one} for j in {two}}}",
    ]
    return draw.choice(forms)


def program(draw):
    setup = SETUP.format(
        letter=draw.choice("aé一😀"),
        length=draw.choice([10, 9999, 1_000_000]),
        half=draw.choice([5, 9999, 500_000]),
        count=draw.choice([10, 999, 20_000]),
        few=draw.choice([10, 999, 9_999]),
        bits=draw.choice([8, 1000, 4095]),
    )
    lines = [f"for i in range({draw.choice([9, 999, 99_999])}):"]
    for _ in range(draw.randint(1, 3)):
        name = draw.choice("xtlds")
        lines.append(f"    {name} = {expression(draw, draw.randint(1, 3))}")
    return setup + "\n".join(lines) + "\n"


@pytest.mark.parametrize(
    "count", [60, pytest.param(3000, marks=pytest.mark.slow)], ids=["few", "many"]
)
def test_random_programs_are_bounded(meter, count):
    draw = random.Random(count)
    outcomes = []
    for number in range(count):
        text = program(draw)
        cost = meter.cost({"c.py": text})
        assert cost.bounded, (number, cost, text)
        outcomes.append(cost.outcome)
    # Some are read, and some go past the budget; mistakes end the others.
    assert sum("Error" not in outcome for outcome in outcomes) == count
    assert any("more work" in outcome for outcome in outcomes)
