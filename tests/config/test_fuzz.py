"""Damaged configs: always a config or a ConfigError of one line."""

import pytest
from hypothesis import given

from devrun.config import Config, check_config
from devrun.errors import ConfigError
from tests.fuzzing import damaged, examples

TEXTS = {
    ".py": [
        "norm = dict(type='BN')\nmodel = dict(type='A', layers=[dict(n=norm)] * 2)\n"
        "lr = 0.1 * 8 / 16\noptimizer = dict(type='SGD', lr=lr, api_key='x')\n",
        "a = [1, 2]\nfor i in range(3):\n    a.append(i * 2)\n"
        "b = {k: v for k, v in zip('abc', a)}\nc = f'{b!r:>10} {a[0]:03d}'\n"
        "d = '{}-{n}'.format('x', n=3)\nif a:\n    b.update(x=1)\nelse:\n    a.pop()\n"
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
    "globals().update({1: 2})\n", "nan", ".inf", "not ", "else", "\ud800",
]  # fmt: skip


def configs(suffix):
    """Texts of that kind, damaged."""
    return damaged(TEXTS[suffix], PIECES)


@pytest.mark.parametrize("suffix", TEXTS)
def test_damaged_configs_are_read_or_refused_in_one_line(suffix):
    read = refused = 0

    @examples(200)
    @given(configs(suffix))
    def reads(text):
        nonlocal read, refused
        try:
            cfg = Config.fromstring(text, suffix, import_custom_modules=False)
            again = Config.fromstring(cfg.pretty_text, ".py", False)
            assert repr(again) == repr(cfg)
            read += 1
            check_config(cfg)
        except ConfigError as error:
            assert str(error).isprintable()
            assert len(str(error)) < 1200
            refused += 1

    reads()
    assert read > 5
    assert refused > 50
