"""`docs/ipu.md` says what the code says."""

import pytest

from devrun.devices.ipu.optimizer import KINDS, POLICY_KEYS
from devrun.devices.ipu.options import MMCV_KEYS, OWN_KEYS, names_of, parse_settings
from devrun.devices.ipu.sdk import load
from tests.docs.blocks import blocks, codes, table, text_of

yaml = pytest.importorskip("yaml")


def named(row):
    return codes(row[0])[0]


def test_the_key_tables_have_every_key():
    keys = table("docs/ipu.md", "key", "meaning")
    policy = table("docs/ipu.md", "key of fp16", "meaning")
    assert [named(row) for row in keys] == [*OWN_KEYS, *MMCV_KEYS]
    assert [named(row) for row in policy] == list(POLICY_KEYS)


def test_the_optimizers_are_those_the_device_runs():
    rows = table("docs/ipu.md", "optimizer", "on the IPU")
    assert {name for row in rows for name in codes(row[0])} == set(KINDS)


def test_the_setters_it_names_are_setters():
    known = names_of(load(emulate=True).Options())
    page = text_of("docs/ipu.md")
    sentence = page[page.index("Every other key") : page.index("A list is several")]
    words = [w for w in codes(sentence) if "." not in w and w != "_Popart"]
    assert len(words) > 10
    assert set(words) <= set(known)


def test_the_example_is_read():
    (example,) = blocks("docs/ipu.md", "yaml")
    cfg = yaml.safe_load(example.text)
    edges = parse_settings(cfg["ipu"]).train_split_edges
    assert [edge["ipu_id"] for edge in edges] == [0, 1]
