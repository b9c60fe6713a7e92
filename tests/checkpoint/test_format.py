"""A checkpoint on disk: what is in the directory, and who else can read it."""

import hashlib
import json
import os
import stat

import pytest
import safetensors.torch
import torch
from torch import nn

from devrun.checkpoint import (
    read_checkpoint,
    read_pointer,
    step_name,
    verify_checkpoint,
    write_checkpoint,
    write_pointer,
)
from devrun.errors import CheckpointError, StorageError


def test_all_parts_come_back(save, trained, same):
    path = save(3)
    model, _ = trained(3)
    found = read_checkpoint(path)
    assert found.step == 3
    assert same(dict(found["model"]), dict(model.state_dict()))
    assert found["trainer"] == {"epoch": 3, "note": "after"}
    assert "optimizer" in found


def test_the_manifest_says_size_and_hash_of_every_file(save):
    path = save(3, device="cpu", emulated=False)
    manifest = json.loads((path / "MANIFEST.json").read_text())
    listed = {entry["name"]: entry for entry in manifest["files"]}
    assert set(listed) == set(os.listdir(path)) - {"MANIFEST.json"}
    for name, entry in listed.items():
        data = (path / name).read_bytes()
        assert entry["size"] == len(data)
        assert entry["sha256"] == hashlib.sha256(data).hexdigest()
    assert manifest["step"] == 3
    assert manifest["run_id"] == "run"
    environment = manifest["environment"]
    assert environment["device"] == "cpu"
    assert environment["emulated"] is False
    assert environment["torch"] == torch.__version__


def test_what_the_caller_adds_to_the_meta_comes_back(save):
    path = save(3, hook_msgs={"best": 0.5, "classes": ("a", "b")})
    manifest = verify_checkpoint(path)
    assert manifest.meta == {"hook_msgs": {"best": 0.5, "classes": ("a", "b")}}


def test_tied_weights_are_stored_once_and_come_back_tied(tmp_path):
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    model[1].weight = model[0].weight
    path = write_checkpoint(
        tmp_path, "tied", {"model": model.state_dict()}, {"step": 0}
    )
    state = read_checkpoint(path)["model"]
    assert state["0.weight"] is state["1.weight"]
    model.load_state_dict(state)
    assert len(safetensors.torch.load_file(path / "model.safetensors")) == 3


def test_the_mode_of_files_follows_the_umask(tmp_path):
    before = os.umask(0o027)
    try:
        path = write_checkpoint(
            tmp_path / "c", "x", {"model": {"w": torch.zeros(1)}}, {"step": 0}
        )
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o750
    for name in os.listdir(path):
        assert stat.S_IMODE((path / name).stat().st_mode) == 0o640


def test_only_the_named_parts_are_read(save):
    path = save(1)
    (path / "optimizer.json").write_bytes(
        b" " * (path / "optimizer.json").stat().st_size
    )
    assert set(read_checkpoint(path, parts=["model", "trainer"]).parts) == {
        "model",
        "trainer",
    }
    with pytest.raises(CheckpointError, match=r"optimizer\.json is damaged"):
        read_checkpoint(path)


def test_a_part_that_is_not_there_names_the_nearest(save):
    path = save(1)
    with pytest.raises(CheckpointError, match="did you mean 'model'"):
        read_checkpoint(path, parts=["modle"])
    with pytest.raises(CheckpointError, match="did you mean 'optimizer'"):
        read_checkpoint(path)["optimiser"]


def test_the_newest_is_pointed_at(save, tmp_path):
    save(1)
    save(2)
    root = tmp_path / "checkpoints"
    assert read_pointer(root, "latest") == step_name(2)
    write_pointer(root, "best", step_name(1), 1)
    assert read_pointer(root, "best") == step_name(1)
    assert read_pointer(root, "none") is None


def test_a_damaged_pointer_says_nothing(tmp_path):
    for content in (b"", b"[]", b'{"checkpoint": "../x"}', b'{"checkpoint": 3}'):
        (tmp_path / "best.json").write_bytes(content)
        assert read_pointer(tmp_path, "best") is None


def test_saving_something_else_under_a_name_replaces_it_whole(save, trained, same):
    save(1)
    path = save(1, seed=7)
    model, _ = trained(7)
    assert same(dict(read_checkpoint(path)["model"]), dict(model.state_dict()))
    assert len(os.listdir(path.parent)) == 2


def test_what_is_no_checkpoint_is_never_replaced(save, tmp_path):
    mine = tmp_path / "checkpoints" / step_name(1)
    mine.mkdir(parents=True)
    for name in ("My Notes.txt", "notes"):
        (mine / name).write_text("keep")
        with pytest.raises(StorageError, match=f"{step_name(1)}.*no checkpoint stands"):
            save(1)
        assert (mine / name).read_text() == "keep"
        assert os.listdir(mine.parent) == [step_name(1)]
        (mine / name).unlink()


@pytest.mark.parametrize(
    "name",
    ["", ".", "..", ".hidden", "a/b", "../up", "/abs", "a\n", "x" * 200, "a.json"],
)
def test_a_name_that_could_lead_elsewhere_is_refused(tmp_path, name):
    with pytest.raises(CheckpointError, match="cannot name a checkpoint"):
        write_checkpoint(tmp_path, name, {"model": {}}, {"step": 0})
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    ("meta", "reason"),
    [
        ({"step": 1, "weights": torch.zeros(1)}, "make it a part"),
        pytest.param({"step": 1, "hook": object()}, r"meta\['hook'\]", id="an object"),
    ],
    ids=str,
)
def test_unfit_meta_is_refused_before_anything_is_written(tmp_path, meta, reason):
    with pytest.raises(CheckpointError, match=reason):
        write_checkpoint(tmp_path, "x", {"model": {}}, meta)
    assert os.listdir(tmp_path) == []


def test_a_root_that_is_a_file_is_one_line(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="cannot write checkpoint") as caught:
        write_checkpoint(tmp_path / "file", "x", {"model": {}}, {"step": 0})
    assert "\n" not in str(caught.value)
