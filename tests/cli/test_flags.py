import argparse

import pytest

from devrun.cli.flags import add_train_flags, device_entry, overrides
from devrun.config import Config
from devrun.errors import ConfigError
from devrun.runners.device_section import adapter_of


def parsed(*words):
    parser = argparse.ArgumentParser()
    add_train_flags(parser)
    return parser.parse_args(["config.yaml", *words])


def device(configured, *words):
    return device_entry(parsed(*words), configured)


def test_without_flags_the_config_decides():
    assert device("auto") == "auto"
    assert device({"type": "cuda", "tf32": True}) == {"type": "cuda", "tf32": True}


def test_the_flag_wins_over_the_config():
    assert device("cpu", "--device", "cuda:1") == "cuda:1"


def test_options_stay_when_the_type_stays():
    configured = {"type": "cuda", "tf32": True}
    assert device(configured, "--device", "cuda:1") == {"type": "cuda:1", "tf32": True}
    assert device(configured, "--device", "cpu") == "cpu"


def test_options_without_a_type_are_those_of_any_device():
    configured = {"channels_last": True}
    assert device(configured) == configured
    taken = {"type": "cpu", "channels_last": True}
    assert device(configured, "--device", "cpu") == taken
    assert adapter_of({"device": configured}).options.channels_last


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


def test_the_configured_device_is_left_as_it_was():
    configured = {"type": "cuda", "tf32": True}
    device(configured, "--device", "cuda:1", "--emulate")
    assert configured == {"type": "cuda", "tf32": True}


def test_emulation_is_written_into_the_device():
    assert device("cpu", "--device", "ipu", "--emulate") == {
        "type": "ipu",
        "emulate": True,
    }


def test_ipu_replicas_mean_the_ipu():
    assert device("auto", "--ipu-replicas", "4") == {"type": "ipu", "replicas": 4}
    assert device("auto", "--device", "ipu", "--ipu-replicas", "2")["replicas"] == 2


def test_gpu_id_selects_a_cuda_device():
    assert device("auto", "--gpu-id", "1") == "cuda:1"
    assert device("auto", "--device", "cuda", "--gpu-id", "1") == "cuda:1"


@pytest.mark.parametrize(
    "words",
    [
        ("--device", "cpu", "--ipu-replicas", "2"),
        ("--device", "cpu", "--gpu-id", "0"),
        ("--device", "cuda:1", "--gpu-id", "0"),
        ("--gpu-id", "0", "--ipu-replicas", "2"),
    ],
)
def test_flags_that_name_two_devices_clash(words):
    with pytest.raises(ConfigError, match="clash"):
        device("auto", *words)


@pytest.mark.parametrize(
    "words",
    [
        ("--resume-from", "auto", "--load-from", "x.pth"),
        ("--resume-from", "auto", "--overwrite"),
    ],
)
def test_flags_that_want_two_beginnings_clash(words):
    with pytest.raises(ConfigError, match="clash"):
        overrides(parsed(*words), {})


def test_flags_become_config_keys():
    words = ("--seed", "7", "--work-dir", "out", "--deterministic")
    assert overrides(parsed(*words), {"device": "cpu"}) == {
        "seed": 7,
        "work_dir": "out",
        "deterministic": True,
    }


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


@pytest.mark.parametrize(
    "configured", [{"type": "ipu", "replicas": 4}, {"type": "ipu", "replicas": 1}]
)
def test_another_number_of_replicas_in_the_config_clashes(configured):
    with pytest.raises(ConfigError, match="--ipu-replicas 2 and device.replicas"):
        device(configured, "--ipu-replicas", "2")


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
