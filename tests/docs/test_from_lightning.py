"""The arguments of Lightning's Trainer, and what is theirs here."""

import inspect

import pytest

from devrun.cli.main import parser_of
from devrun.cli.parser import flags_of
from devrun.config import Config, check_config
from devrun.config.shipped import config_path
from tests.docs.blocks import codes, table

ROWS = table("docs/from-lightning.md", "Trainer", "devrun")


def test_every_flag_is_one_of_train():
    flags = [c.split()[0] for row in ROWS for c in codes(row[1]) if c.startswith("--")]
    assert flags
    assert set(flags) <= set(flags_of(parser_of("train")))


@pytest.mark.parametrize(
    "word", [c for row in ROWS for c in codes(row[1]) if "=" in c and c[0] != "-"]
)
def test_every_key_is_one_of_a_config(word):
    words = ["c.yaml", "--cfg-options", word]
    options = parser_of("train").parse_args(words).cfg_options
    cfg = Config.fromfile(config_path("digits/resnet8_digits.yaml"))
    cfg.merge_from_dict(options)
    check_config(cfg)


def test_no_argument_is_missing():
    trainer = pytest.importorskip("lightning", reason="lightning is not here").Trainer
    named = {code for row in ROWS for code in codes(row[0])}
    assert set(inspect.signature(trainer).parameters) == named
