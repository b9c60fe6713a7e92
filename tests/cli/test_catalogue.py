"""What there is, what a key or a type means, and the config as it is used."""

import json
import os
import re
import subprocess
import sys
from functools import partial

import pytest

from devrun.cli.catalogue import KINDS, catalogue
from devrun.config import Config
from devrun.config.shipped import shipped_configs
from tests.support.command import command

OWN = '''
from torch import nn
from devrun.registry import MODELS

@MODELS.register_module()
class TinyNet(nn.Linear):
    """A model of my own."""
'''


@pytest.fixture
def devrun(capsys):
    return partial(command, capsys)


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_has_names_with_a_line_each(kind):
    found = catalogue(kind)
    assert found
    assert all(entry.summary for entry in found)


def test_a_list_is_of_a_kind_a_pattern_or_both(devrun):
    assert "ResNet" in devrun("list", "models")[1]
    names = [
        line.split()[2] for line in devrun("list", "hooks", "e*stop*")[1].splitlines()
    ]
    assert names == ["EarlyStoppingHook"]
    kinds = {line.split()[0] for line in devrun("list", "resnet")[1].splitlines()}
    assert kinds == {"models", "configs"}
    assert "CosineAnnealingLR " in devrun("list", "policies")[1]
    status, _, err = devrun("list", "models", "resnot")
    assert status == 2
    assert "nothing is named like 'resnot'" in err


@pytest.mark.parametrize("word", ["policy", "loss", "hook"])
def test_one_of_a_kind_lists_the_kind(devrun, word):
    kinds = {line.split()[0] for line in devrun("list", word)[1].splitlines()}
    assert kinds == {{"policy": "policies", "loss": "losses", "hook": "hooks"}[word]}


def test_own_modules_are_listed_and_explained(devrun, tmp_path, monkeypatch):
    (tmp_path / "my_tiny.py").write_text(OWN)
    out = devrun("list", "models", "tiny", "--import", "my_tiny")[1]
    assert out.split(maxsplit=3) == [
        "models",
        "my_tiny",
        "TinyNet",
        "A model of my own.\n",
    ]
    out = devrun("explain", "TinyNet", "--import", "my_tiny")[1]
    assert "TinyNet(in_features: int, out_features: int" in out


@pytest.mark.parametrize(
    ("word", "lines"),
    [
        (
            "optimizer_config.cumulative_iters",
            "takes an integer of at least 1.*make one",
        ),
        ("evaluation.save_best", "best checkpoint.*default: None.*example: .*accuracy"),
        ("runner.max_time", "part of runner: .*2h stops.*default: none.*page: docs/"),
        ("data.train_dataloader.shuffle", "true or false.*true for training"),
        ("checkpoint_config", "keys: .*max_keep_ckpts.*devrun explain CheckpointHook"),
        ("MLP", r"models: MLP, of devrun.*in_features: int"),
        ("Step", r"policies: Step.*each milestone.*page: docs/hooks.md"),
        ("torch.nn.Linear", r"models: torch.nn.Linear.*in_features"),
    ],
)
def test_a_key_and_a_type_are_explained(devrun, word, lines):
    status, out, _ = devrun("explain", word)
    assert status == 0
    assert re.search(lines, out, re.DOTALL)


@pytest.mark.parametrize("word", ["evaluation.save_bets", "optimizer.lr", "os.system"])
def test_what_is_nowhere_is_one_line(devrun, word):
    status, _, err = devrun("explain", word)
    assert status == 2
    assert len(err.splitlines()) == 1


def test_a_config_is_printed_with_where_each_value_is_from(devrun, config, tmp_path):
    config()
    (tmp_path / "child.yaml").write_text(
        "_base_: small.yaml\nseed: 3\noptimizer: {api_key: abc}\n"
    )
    status, out, _ = devrun(
        "config",
        "child.yaml",
        "--cfg-options",
        "optimizer.lr=1e-3",
        "custom_hooks+={type: EMAHook}",
    )
    rows = dict(line.rsplit("# ", 1) for line in out.splitlines())
    found = {key.strip(): place for key, place in rows.items()}
    assert status == 0
    assert found["seed=3"] == "child.yaml:2"
    assert found["optimizer.lr=0.001"] == "command line"
    assert found["custom_hooks.0.type=EMAHook"] == "command line"
    assert found["data.train.num_samples=32"].startswith("small.yaml:")
    assert "abc" not in out


def test_a_plain_config_loads_back_equal(devrun, config, tmp_path):
    path = config()
    (tmp_path / "again.yaml").write_text(devrun("config", path, "--plain")[1])
    assert Config.fromfile("again.yaml") == Config.fromfile(path)


def test_a_shipped_config_needs_no_checkout(devrun):
    words = ("--dry-run", "--device", "cpu", "--no-validate")
    status, out, _ = devrun("train", "digits/resnet8_digits.yaml", *words)
    assert status == 0
    assert "dry run" in out
    assert devrun("config", "configs/digits/resnet8_digits.yaml")[0] == 0


def test_what_is_here_goes_before_what_is_shipped(devrun, config, tmp_path):
    os.mkdir("digits")
    os.rename(config(), tmp_path / "digits" / "resnet8_digits.yaml")
    assert "model.type=MLP" in devrun("config", "digits/resnet8_digits.yaml")[1]


def test_shipped_configs_are_those_of_the_folder():
    names = shipped_configs()
    assert "digits/resnet8_digits.yaml" in names
    assert not [name for name in names if "_base_" in name]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("devrun ex", {"explain", "export"}),
        ("devrun train digits/", {"digits/resnet8_digits.yaml"}),
        ("devrun train x.yaml --no-v", {"--no-validate"}),
        (
            "devrun train x.yaml --cfg-options checkpoint_config.int",
            {"checkpoint_config.interval="},
        ),
        ("devrun explain EarlySto", {"EarlyStoppingHook"}),
    ],
)
def test_tab_completes_commands_flags_keys_and_configs(line, expected, tmp_path):
    pytest.importorskip("argcomplete", reason="the extra completion is not installed")
    asked = {"COMP_LINE": line, "COMP_POINT": str(len(line)), "_ARGCOMPLETE": "1"}
    answer = tmp_path / "answer"
    subprocess.run(
        [sys.executable, "-m", "devrun"],
        env={
            **os.environ,
            **asked,
            "_ARGCOMPLETE_IFS": "\n",
            "_ARGCOMPLETE_STDOUT_FILENAME": str(answer),
        },
        check=True,
    )
    assert {word.strip() for word in answer.read_text().splitlines()} == expected


def test_the_schema_is_json(devrun):
    assert json.loads(devrun("schema")[1])["properties"]["seed"]["description"]
