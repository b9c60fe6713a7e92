import argparse
import copy

import pytest

from devrun.cli.flags import add_train_flags, device_entry, overrides
from devrun.config import Config
from devrun.devices.device_section import adapter_of
from devrun.errors import ConfigError


def parsed(*words):
    parser = argparse.ArgumentParser()
    add_train_flags(parser)
    return parser.parse_args(["config.yaml", *words])


def device(configured, *words):
    return device_entry(parsed(*words), configured)


TF32 = {"type": "cuda", "tf32": True}


@pytest.mark.parametrize(
    ("configured", "words", "found"),
    [
        # without flags the config decides
        ("auto", "", "auto"),
        (TF32, "", TF32),
        # the flag wins, and options stay when the type stays
        ("cpu", "--device cuda:1", "cuda:1"),
        (TF32, "--device cuda:1", {"type": "cuda:1", "tf32": True}),
        (TF32, "--device cpu", "cpu"),
        ("cpu", "--device ipu --emulate", {"type": "ipu", "emulate": True}),
        # options without a type are those of any device
        ({"channels_last": True}, "", {"channels_last": True}),
        (
            {"channels_last": True},
            "--device cpu",
            {"type": "cpu", "channels_last": True},
        ),
        # flags that mean a device
        ("auto", "--ipu-replicas 4", {"type": "ipu", "replicas": 4}),
        ("auto", "--device ipu --ipu-replicas 4", {"type": "ipu", "replicas": 4}),
        ("auto", "--gpu-id 1", "cuda:1"),
    ],
)
def test_the_device_is_that_of_config_and_flags(configured, words, found):
    before = copy.deepcopy(configured)
    assert device(configured, *words.split()) == found
    assert configured == before


def test_options_without_a_type_reach_the_adapter():
    assert adapter_of({"device": {"channels_last": True}}).options.channels_last


@pytest.mark.parametrize(
    ("configured", "lost"),
    [
        ({"type": "cuda", "tf32": True, "index": 1}, "index, tf32"),
        ({"type": "ipu", "emulate": True}, "emulate"),
    ],
)
def test_options_of_the_configured_device_are_left_out_aloud(
    config, train, configured, lost
):
    status, _, err = train(config(device=configured), "--device", "cpu", "--dry-run")
    assert status == 0, err
    (said,) = [line for line in err.splitlines() if "left out" in line]
    kind = configured["type"]
    assert f"on device cpu, options of device {kind} are left out: {lost}; in " in said


@pytest.mark.parametrize(
    "words",
    [
        "--device cpu --ipu-replicas 2",
        "--gpu-id 0 --ipu-replicas 2",
        "--ipu-replicas 2",  # and 4 in the config
        "--resume-from auto --load-from x.pth",
        "--resume-from auto --overwrite",
    ],
)
def test_flags_that_contradict_each_other_or_the_config_clash(words):
    with pytest.raises(ConfigError, match="clash"):
        overrides(parsed(*words.split()), {"device": {"type": "ipu", "replicas": 4}})


@pytest.mark.parametrize(
    "words",
    ["--device cpu --gpu-id 0", "--gpu-id 1 --device cuda"],
)
def test_one_flag_names_the_device(words, capsys):
    with pytest.raises(SystemExit):
        parsed(*words.split())
    assert "not allowed with argument" in capsys.readouterr().err


@pytest.mark.parametrize("device", ["ipu", "cpu", {"type": "cuda", "benchmark": True}])
def test_the_device_of_the_flags_takes_the_place_of_the_configured_one(device):
    cfg = Config({"device": device})
    cfg.merge_from_dict(overrides(parsed("--ipu-replicas", "2", "--emulate"), cfg))
    assert cfg["device"] == {"type": "ipu", "replicas": 2, "emulate": True}


@pytest.mark.parametrize("text", ["-1", "x", "1.5"])
def test_a_seed_is_a_whole_number(text, capsys):
    with pytest.raises(SystemExit):
        parsed(f"--seed={text}")
    assert "not a number of 0 or more" in capsys.readouterr().err


@pytest.mark.parametrize("flag", ["--device", "--work-dir", "--load-from"])
def test_a_variable_that_is_not_set_is_not_taken_for_nothing(flag, capsys):
    with pytest.raises(SystemExit):
        parsed(flag, "")
    assert "is empty; was a variable not set?" in capsys.readouterr().err


def test_local_rank_is_known_in_both_spellings():
    assert parsed("--local_rank", "1").local_rank == 1
    assert parsed("--local-rank=1").local_rank == 1


def test_a_config_without_a_runner_may_say_how_long_as_in_mmcv(config, train):
    path = config(runner=None, total_epochs=1)
    status, out, err = train(path, "--no-progress")
    assert status == 0, err
    assert "done: 1 epochs, 4 iterations" in out
    words = (path, "--no-progress", "--work-dir", "second", "--cfg-options")
    _, out, _ = train(*words, "total_epochs=2")
    assert "done: 2 epochs" in out
    path = config(runner={"max_iters": 3}, total_iters=9, evaluation={"interval": 9})
    _, out, err = train(path, "--no-progress", "--work-dir", "third")
    assert "3 iterations" in out, err


def test_a_wrong_length_is_told_with_its_line(config, train):
    status, _, err = train(config(runner=None, total_epochs=-1))
    assert status == 2
    assert "small.yaml:" in err
    assert "max_epochs" in err.splitlines()[-1]


def test_a_length_beside_a_runner_is_refused(config, train):
    status, _, err = train(config(total_epochs=1))
    assert status == 2
    assert "total_epochs: no longer read; write runner = dict(" in err
