"""Random damage to configs: always a config or a ConfigError of one line."""

import random

import pytest

from devrun.config import Config, check_config
from devrun.errors import ConfigError

SEEDS = {
    ".py": [
        "norm = dict(type='BN')\nmodel = dict(type='A', layers=[dict(n=norm)] * 2)\n"
        "lr = 0.1 * 8 / 16\noptimizer = dict(type='SGD', lr=lr, api_key='x')\n",
        "a = [1, 2]\nfor i in range(3):\n    a.append(i * 2)\n"
        "b = {k: v for k, v in zip('abc', a)}\nc = f'{b!r:>10} {a[0]:03d}'\n"
        "d = '%s-%d' % ('x', 3)\nif a:\n    b.update(x=1)\nelse:\n    del a\n"
        "e = sorted([3, 1])[::-1]\nf = max(1, 2) ** 3 // 2\n",
    ],
    ".yaml": [
        "a: &x {b: 1, c: [1, 2.5, 1e-3]}\nd: *x\ne:\n  <<: *x\n  f: 'no'\n"
        "g: ${env:HOME:x}\nh: |\n  text\ni: {{ _base_.a }}\n",
        "model:\n  type: A\n  backbone: {depth: 18}\ndata: {samples_per_gpu: 2}\n",
    ],
    ".json": ['{"a": {"b": [1, 2.5e3, "x\\n"]}, "c": null, "d": true, "e": NaN}'],
}
PIECES = [
    *"[](){}:,*#&!?|>%@~\\'\"=\n\t ", "- ", "**9**9", "*10**9", "!!python/object:x ",
    "_base_", "import os\n", "lambda: 0", "{{ _base_.a }}", "{{ fileDirname }}",
    "${env:", "${env:NONE_SUCH}", "\\x00", "\\ud800", "é", "\x07", "dict(", "while 1:",
    "range(10**9)", "for i in range(99999):", "x = [x, x]\n", "<<: ", "%999999999d",
    "1e999", "9" * 30, "_delete_=True", "yield", "del ", ".format(", ".a.b", "break\n",
    "globals().update({1: 2})\n", "nan", ".inf", "not ", "else",
]  # fmt: skip


def damaged(draw, text):
    for _ in range(draw.randint(1, 6)):
        at = draw.randrange(len(text) + 1)
        end = min(len(text), at + draw.randint(1, 30))
        kind = draw.random()
        if kind < 0.4:
            text = text[:at] + draw.choice(PIECES) + text[at:]
        elif kind < 0.6:
            text = text[:at] + text[end:]
        elif kind < 0.8:
            text = text[:end] + text[at:end] * draw.randint(1, 4) + text[end:]
        else:
            text = text[:at] + chr(draw.randint(1, 0x2FF)) + text[at + 1 :]
    return text


@pytest.mark.parametrize("suffix", SEEDS)
def test_damaged_configs_are_read_or_refused_in_one_line(suffix):
    draw = random.Random(suffix)
    read = refused = 0
    for _ in range(400):
        text = damaged(draw, draw.choice(SEEDS[suffix]))
        try:
            cfg = Config.fromstring(text, suffix, import_custom_modules=False)
            again = Config.fromstring(cfg.pretty_text, ".py", False)
            assert repr(again) == repr(cfg), text
            read += 1
            check_config(cfg)
        except ConfigError as error:
            assert str(error).isprintable(), text
            assert len(str(error)) < 1200
            refused += 1
    assert read > 5
    assert refused > 100


@pytest.mark.parametrize("suffix", SEEDS)
def test_random_bytes_are_refused_in_one_line(suffix, tmp_path):
    draw = random.Random(suffix)
    path = tmp_path / f"c{suffix}"
    for _ in range(100):
        path.write_bytes(draw.randbytes(draw.randint(1, 60)))
        try:
            Config.fromfile(path)
        except ConfigError as error:
            assert str(error).isprintable()
