"""Every kind of damage is found before anything is used, and an older one serves."""

import hashlib
import json

import pytest

from devrun.checkpoint import (
    export_weights,
    find_latest,
    optimizer_state_by_name,
    read_checkpoint,
)
from devrun.checkpoint.manifest import _sealed
from devrun.errors import CheckpointError
from tests.checkpoint.conftest import load_optimizer_state_by_name


@pytest.fixture
def pair(save):
    """Two checkpoints: an old one, and a newer one to be damaged."""
    return save(1), save(2)


def test_a_symlinked_directory_is_no_checkpoint_of_the_root(pair, tmp_path):
    old, new = pair
    new.rename(tmp_path / "elsewhere")
    new.symlink_to(tmp_path / "elsewhere")
    assert find_latest(old.parent) == old


def forged(path, **changes):
    """Rewrite the manifest with `changes`, its own hash made to fit."""
    manifest = path / "MANIFEST.json"
    record = json.loads(manifest.read_text())
    record.update(changes)
    record.pop("self_sha256")
    manifest.write_bytes(_sealed(record))


def test_a_forged_size_is_compared_before_anything_is_read(save):
    path = save(1)
    record = json.loads((path / "MANIFEST.json").read_text())
    record["files"][0]["size"] = 1 << 60
    forged(path, files=record["files"])
    with pytest.raises(CheckpointError, match="instead of 1152921504606846976"):
        read_checkpoint(path)


SHAPES = [b"null", b"[]", b"7", b'"text"', b"[" * 5000 + b"]" * 5000, b"9" * 100_000]


@pytest.mark.parametrize("part", ["model", "optimizer", "trainer"])
@pytest.mark.parametrize("text", SHAPES, ids=lambda text: text[:6].decode())
def test_another_value_in_place_of_a_dict_is_refused(save, part, text):
    """Also by a command that reads one part, and under a manifest that fits."""
    path = save(1)
    (path / f"{part}.json").write_bytes(text)
    record = json.loads((path / "MANIFEST.json").read_text())
    for entry in record["files"]:
        if entry["name"] == f"{part}.json":
            entry.update(size=len(text), sha256=hashlib.sha256(text).hexdigest())
    forged(path, files=record["files"])
    for read in (
        read_checkpoint,
        lambda path: export_weights(path, path.parent / "x.pth"),
    ):
        with pytest.raises(CheckpointError, match=part) as caught:
            read(path)
        assert str(caught.value).isprintable()


@pytest.mark.parametrize(
    "key", ["type", "state", "groups", "parameters", "extra", "0.weight"]
)
@pytest.mark.parametrize("value", [None, [], 5, "x"])
def test_an_optimizer_state_of_another_shape_is_one_line(trained, key, value):
    model, optimizer = trained()
    tree = optimizer_state_by_name(model, optimizer)
    owner = tree["state"] if key == "0.weight" else tree
    owner[key] = value
    before = bytes(str(optimizer.state_dict()), "utf-8")
    with pytest.raises(CheckpointError) as caught:
        load_optimizer_state_by_name(model, optimizer, tree)
    assert str(caught.value).isprintable()
    assert bytes(str(optimizer.state_dict()), "utf-8") == before
