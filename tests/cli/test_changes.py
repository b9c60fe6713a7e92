"""Going on with another config: shown, and refused where it would be another run."""

import shutil
from pathlib import Path

import pytest
import torch

from devrun.checkpoint import read_checkpoint

MORE = {"runner": {"type": "EpochBasedRunner", "max_epochs": 3}}


class Old:
    """What an old file may hold."""


@pytest.fixture
def first(config, train):
    status, _, err = train(config(), "--work-dir", "out", "--seed", "1")
    assert status == 0, err
    return "out"


def again(train, path, *words):
    return train(path, "--work-dir", "out", "--resume-from", "auto", *words)


REFUSED = {
    "model": ("model.hidden.0=9", "model.hidden.0: 8 -> 9"),
    "loss": ("loss.type=MultiMarginLoss", "loss.type: 'CrossEntropyLoss'"),
    "optimizer": ("optimizer.type=Adam", "optimizer.type: 'SGD' -> 'Adam'"),
    "data": ("data.train.num_samples=64", "data.train.num_samples: 32 -> 64"),
    "batch size": ("data.samples_per_gpu=4", "samples an update.*: 8 -> 4"),
    "accumulation": ("optimizer_config.cumulative_iters=2", "samples an up.*: 8 -> 16"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_makes_another_run_is_refused(config, train, first, name):
    word, shown = REFUSED[name]
    status, _, err = again(train, config(**MORE), "--cfg-options", word)
    assert status == 3, err
    line = err.strip().splitlines()[-1]
    assert line.startswith("devrun: error: this is not the run that wrote ")
    assert shown.split(".*")[0] in line and shown.split(".*")[-1] in line
    assert "--allow-changes" in line


def test_another_seed_is_refused_and_the_same_is_not(config, train, first):
    path = config(**MORE)
    status, _, err = again(train, path, "--seed", "2")
    assert status == 3 and "seed: 1 -> 2" in err
    status, _, err = again(train, path, "--seed", "1")
    assert status == 0, err


def test_other_differences_are_shown(config, train, first):
    status, _, err = again(train, config(**MORE), "--cfg-options", "optimizer.lr=0.01")
    assert status == 0, err
    assert "config changed: optimizer.lr: 0.1 -> 0.01" in err
    assert "config changed: runner.max_epochs: 2 -> 3" in err


def test_changes_may_be_allowed(config, train, first):
    words = ("--cfg-options", "data.samples_per_gpu=4", "data.train.num_samples=64")
    status, _, err = again(train, config(**MORE), "--allow-changes", *words)
    assert status == 0, err
    assert "data.train.num_samples: 32 -> 64" in err
    assert "takes 4 now" in err


def test_export_and_both_ways_back(config, train, first, capsys):
    from devrun.cli.main import main

    source = "out/checkpoints/step-00000008"
    assert main(["export", source, "--output", "x.pth"]) == 0
    content = torch.load("x.pth", weights_only=True)
    assert content.keys() == {"meta", "state_dict", "optimizer"}
    assert (content["meta"]["epoch"], content["meta"]["iter"]) == (2, 8)
    saved = read_checkpoint(source)
    assert all(
        torch.equal(saved["model"][k], content["state_dict"][k]) for k in saved["model"]
    )
    path = config(**MORE)
    status, _, err = train(path, "--work-dir", "a", "--load-from", "x.pth")
    assert status == 0, err
    status, _, err = train(path, "--work-dir", "b", "--resume-from", "x.pth")
    assert status == 0, err
    assert "resumed epoch: 2, iter: 8" in err
    capsys.readouterr()
    assert main(["export", source, "--output", "x.pth"]) == 3
    assert "--overwrite" in capsys.readouterr().err
    assert main(["export", source, "--weights", "evaluated", "--output", "y.pth"]) == 3
    assert "no EMAHook" in capsys.readouterr().err
    assert not Path("y.pth").exists()


def test_export_refuses_a_damaged_checkpoint(first, capsys):
    from devrun.cli.main import main

    source = Path("out/checkpoints/step-00000008")
    data = bytearray((source / "model.safetensors").read_bytes())
    data[-1] ^= 1
    (source / "model.safetensors").write_bytes(data)
    capsys.readouterr()
    assert main(["export", str(source)]) == 3
    assert "sha256" in capsys.readouterr().err


def test_the_averaged_weights_can_be_exported(config, train):
    from devrun.cli.main import main

    path = config(custom_hooks=[{"type": "EMAHook", "momentum": 0.1}])
    assert train(path, "--work-dir", "out")[0] == 0
    (best,) = Path("out/checkpoints").glob("best_*")
    saved = read_checkpoint(best)
    assert saved.manifest.meta["evaluated_weights"] == "hooks/EMAHook/model"
    words = ["export", str(best), "--weights", "evaluated", "--output", "e.pth"]
    assert main(words) == 0
    content = torch.load("e.pth", weights_only=True)
    averaged = saved["hooks"]["EMAHook"]["model"]
    name = next(iter(averaged))
    assert torch.equal(content["state_dict"][name], averaged[name])
    assert not torch.equal(content["state_dict"][name], saved["model"][name])


def test_an_old_pickle_is_loaded_only_by_name(config, train, first, monkeypatch):
    saved = read_checkpoint("out/checkpoints/step-00000008")
    Old.__module__, Old.__qualname__ = "builtins", "Old"
    monkeypatch.setattr("builtins.Old", Old, raising=False)
    torch.save({"state_dict": saved["model"], "meta": {"old": Old()}}, "old.pth")
    path = config(**MORE)
    status, _, err = train(path, "--work-dir", "a", "--load-from", "old.pth")
    assert status == 3 and "--allow-pickle" in err and "Old" in err
    shutil.rmtree("a")
    words = ("--work-dir", "a", "--load-from", "old.pth", "--allow-pickle")
    status, _, err = train(path, *words, "other.pth")
    assert status == 2 and "is not the file that is loaded" in err
    status, _, err = train(path, *words, "old.pth")
    assert status == 0, err
    assert "is unpickled, which runs the code" in err
