import os

import pytest
import torch
from torch import nn

from devrun.checkpoint import (
    mmcv_optimizer_tree,
    optimizer_state_by_name,
    positional_optimizer_state,
    read_mmcv_checkpoint,
    save_checkpoint,
    write_mmcv_checkpoint,
)
from devrun.errors import CheckpointError
from tests.checkpoint.conftest import load_optimizer_state_by_name
from tests.support.strict import zip_strict


def load_mmcv_optimizer(model, optimizer, found):
    tree = mmcv_optimizer_tree(model, optimizer, found)
    load_optimizer_state_by_name(model, optimizer, tree)


def mmcv_file(path, model, optimizer, **meta):
    """As MMCV 1.7.2 writes it."""
    state = optimizer.state_dict() if not isinstance(optimizer, dict) else optimizer
    torch.save(
        {
            "meta": {"mmcv_version": "1.7.2", "time": "now", **meta},
            "state_dict": model.state_dict(),
            "optimizer": state,
        },
        path,
    )


def test_a_file_of_mmcv_gives_weights_progress_and_optimizer(tmp_path, trained, same):
    model, optimizer = trained()
    mmcv_file(tmp_path / "epoch_2.pth", model, optimizer, epoch=2, iter=8)
    found = read_mmcv_checkpoint(tmp_path / "epoch_2.pth")
    assert found.progress == (2, 8)
    other, fresh = trained(1)
    other.load_state_dict(found.state_dict)
    load_mmcv_optimizer(other, fresh, found)
    assert same(fresh.state_dict(), optimizer.state_dict())


def test_the_iteration_runners_count_is_put_right(tmp_path, trained):
    mmcv_file(tmp_path / "iter_8.pth", *trained(), epoch=1, iter=7)
    os.symlink("iter_8.pth", tmp_path / "latest.pth")
    assert read_mmcv_checkpoint(tmp_path / "iter_8.pth").progress == (1, 8)
    assert read_mmcv_checkpoint(tmp_path / "latest.pth").progress == (1, 8)


def test_what_devrun_writes_torch_loads_as_mmcv_would(tmp_path, trained, same):
    model, optimizer = trained()
    tree = optimizer_state_by_name(model, optimizer)
    write_mmcv_checkpoint(
        tmp_path / "epoch_1.pth",
        model.state_dict(),
        positional_optimizer_state(tree),
        {"epoch": 1, "iter": 3},
    )
    content = torch.load(tmp_path / "epoch_1.pth", weights_only=True)
    assert content["meta"]["epoch"] == 1
    other, fresh = trained(1)
    other.load_state_dict(content["state_dict"], strict=True)
    fresh.load_state_dict(content["optimizer"])
    assert same(fresh.state_dict(), optimizer.state_dict())
    assert os.listdir(tmp_path) == ["epoch_1.pth"]


def test_several_optimizers(tmp_path, same):
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))

    def build():
        return {
            key: torch.optim.SGD(part.parameters(), lr=0.1, momentum=0.9)
            for key, part in zip_strict("ab", model)
        }

    optimizers = build()
    model(torch.ones(1, 2)).sum().backward()
    for optimizer in optimizers.values():
        optimizer.step()
    save_checkpoint(model, tmp_path / "x.pth", optimizers, {"epoch": 1, "iter": 1})
    found, fresh = read_mmcv_checkpoint(tmp_path / "x.pth"), build()
    load_mmcv_optimizer(model, fresh, found)
    for key in optimizers:
        assert same(fresh[key].state_dict(), optimizers[key].state_dict())
    with pytest.raises(CheckpointError, match=r"\['a', 'b'\], the run \['one'\]"):
        load_mmcv_optimizer(model, fresh["a"], found)
    with pytest.raises(CheckpointError, match=r"\['a', 'b'\], the run \['a'\]"):
        load_mmcv_optimizer(model, {"a": fresh["a"]}, found)


def test_what_a_resume_needs_and_is_not_there_is_said(tmp_path, trained):
    model, optimizer = trained()
    save_checkpoint(model, tmp_path / "x.pth")
    found = read_mmcv_checkpoint(tmp_path / "x.pth")
    with pytest.raises(CheckpointError, match="no epoch and iter"):
        _ = found.progress
    with pytest.raises(CheckpointError, match="no optimizer state"):
        load_mmcv_optimizer(model, optimizer, found)
    torch.save(model.state_dict(), tmp_path / "bare.pth")
    with pytest.raises(CheckpointError, match="not of an MMCV runner"):
        read_mmcv_checkpoint(tmp_path / "bare.pth")
