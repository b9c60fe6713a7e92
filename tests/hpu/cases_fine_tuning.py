"""The keys for fine-tuning on the emulated Gaudi: what the CPU does."""

import os
from pathlib import Path

import torch
import yaml

from devrun.checkpoint import find_latest, read_checkpoint
from devrun.cli.main import main
from tests.hpu.runs import MODE
from tests.support.configs import IMAGES, RESNET, VIT

MODES = ("lazy", "eager")


def run(folder, device, *words, status=0, command="train", **changes):
    """Train, or another command, in `folder`; the weights saved in `device`'s."""
    os.chdir(folder)
    data = {
        "samples_per_gpu": 8,
        "train": {**IMAGES, "num_samples": 32},
        "val": {
            "near": {**IMAGES, "num_samples": 11, "offset": 32},
            "far": {**IMAGES, "num_samples": 8, "offset": 64},
        },
        **changes.pop("data", {}),
    }
    where = {"type": "hpu", "emulate": True, **MODE} if device == "hpu" else device
    cfg = {
        "model": VIT,
        "loss": {"type": "CrossEntropyLoss"},
        "data": data,
        "optimizer": {"type": "SGD", "lr": 0.1, "momentum": 0.9},
        "runner": {"type": "EpochBasedRunner", "max_epochs": 1},
        "checkpoint_config": {"interval": 1},
        "evaluation": {"metric": "accuracy", "save_best": "near/accuracy"},
        "device": where,
        **changes,
    }
    Path(f"{device}.yaml").write_text(yaml.safe_dump(cfg))
    flags = ["--work-dir", device, "--seed", "1"] if command == "train" else []
    assert main([command, f"{device}.yaml", *flags, "--no-progress", *words]) == status
    newest = find_latest(Path(device) / "checkpoints")
    return None if newest is None else read_checkpoint(newest)["model"]


def both(folder, **changes):
    """The weights after the same training on the Gaudi, close to those of the CPU."""
    mine, theirs = (run(folder, device, **changes) for device in ("hpu", "cpu"))
    assert mine.keys() == theirs.keys()
    for name, value in theirs.items():
        torch.testing.assert_close(mine[name], value, rtol=1e-3, atol=2e-4)
    return mine


def test_checkpointing_changes_no_bit(tmp_path):
    model = {**VIT, "dropout": 0.2}
    plain = run(_made(tmp_path, "p"), "hpu", model=model)
    again = run(_made(tmp_path, "a"), "hpu", model=model, gradient_checkpointing=True)
    assert all(torch.equal(plain[name], again[name]) for name in plain)
    if MODE["mode"] == "lazy":
        MODE["graphs"] = True
        try:
            graphs = run(_made(tmp_path, "g"), "hpu", gradient_checkpointing=True)
            without = run(_made(tmp_path, "w"), "hpu")
        finally:
            del MODE["graphs"]
        assert all(torch.equal(graphs[name], without[name]) for name in graphs)
    both(_made(tmp_path, "r"), model=RESNET, gradient_checkpointing=True)


def _made(folder, name):
    (folder / name).mkdir()
    return folder / name
