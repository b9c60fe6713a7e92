"""Every kind of damage is found before anything is used, and an older one serves."""

from __future__ import annotations

import errno
import hashlib
import json
import logging
import os
import pickle
import random
import shutil
import struct

import pytest

from devrun.checkpoint import (
    export_weights,
    find_latest,
    load_optimizer_state_by_name,
    optimizer_state_by_name,
    read_checkpoint,
    strict_json,
    verify_checkpoint,
)
from devrun.checkpoint.manifest import Manifest
from devrun.errors import CheckpointError


@pytest.fixture
def pair(save):
    """Two checkpoints: an old one, and a newer one to be damaged."""
    return save(1), save(2)


def refused(old, new, caplog):
    """Assert that `new` is refused in one line and `old` taken in its place."""
    with pytest.raises(CheckpointError) as caught:
        read_checkpoint(new)
    assert "\n" not in str(caught.value)
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        assert find_latest(old.parent) == old
    (record,) = caplog.records
    assert new.name in record.getMessage()
    return str(caught.value)


def test_truncation_at_any_length(pair, caplog):
    old, new = pair
    for name in os.listdir(new):
        whole = (new / name).read_bytes()
        lengths = {0, 1, len(whole) // 2, len(whole) - 1}
        lengths |= set(random.Random(name).choices(range(len(whole)), k=12))
        for length in lengths:
            (new / name).write_bytes(whole[:length])
            assert name in refused(old, new, caplog)
        (new / name).write_bytes(whole)
    assert find_latest(old.parent) == new


def test_any_single_bit(pair, caplog):
    old, new = pair
    rng = random.Random(0)
    for name in sorted(os.listdir(new)):
        whole = (new / name).read_bytes()
        for _ in range(60):
            changed = bytearray(whole)
            changed[rng.randrange(len(whole))] ^= 1 << rng.randrange(8)
            (new / name).write_bytes(changed)
            with pytest.raises(CheckpointError):
                verify_checkpoint(new)
        refused(old, new, caplog)
        (new / name).write_bytes(whole)
    assert find_latest(old.parent) == new


def test_every_bit_of_the_manifest(save):
    manifest = save(1) / "MANIFEST.json"
    whole = manifest.read_bytes()
    for position in range(0, len(whole) * 8, 7):
        changed = bytearray(whole)
        changed[position // 8] ^= 1 << (position % 8)
        with pytest.raises(CheckpointError):
            Manifest.parse(bytes(changed))


def test_zeroed_content_of_the_right_size(pair, caplog):
    old, new = pair
    file = new / "model.safetensors"
    data = file.read_bytes()
    file.write_bytes(data[:-16] + b"\0" * 16)
    assert "sha256" in refused(old, new, caplog)


@pytest.mark.parametrize("name", ["model.safetensors", "trainer.json", "MANIFEST.json"])
def test_a_missing_file(pair, caplog, name):
    old, new = pair
    (new / name).unlink()
    assert name in refused(old, new, caplog)


def test_a_file_too_many(pair, caplog):
    old, new = pair
    (new / "extra.json").write_text("{}")
    assert "does not belong" in refused(old, new, caplog)


def test_files_of_two_checkpoints_swapped(pair, caplog):
    old, new = pair
    shutil.copy(old / "model.safetensors", new / "model.safetensors")
    assert "model.safetensors" in refused(old, new, caplog)


def test_files_of_one_checkpoint_swapped(pair, caplog):
    old, new = pair
    (new / "model.json").rename(new / "x")
    (new / "trainer.json").rename(new / "model.json")
    (new / "x").rename(new / "trainer.json")
    refused(old, new, caplog)


def test_the_manifest_of_another_checkpoint(pair, caplog):
    old, new = pair
    shutil.copy(old / "MANIFEST.json", new / "MANIFEST.json")
    with pytest.raises(CheckpointError):
        verify_checkpoint(new)


def test_an_empty_directory(pair, caplog):
    old, new = pair
    shutil.rmtree(new)
    new.mkdir()
    assert "no MANIFEST.json" in refused(old, new, caplog)


def test_a_symlink_in_place_of_a_file(pair, caplog, tmp_path):
    old, new = pair
    file = new / "model.safetensors"
    file.rename(tmp_path / "elsewhere")
    file.symlink_to(tmp_path / "elsewhere")
    assert "not a regular file" in refused(old, new, caplog)


def test_a_symlinked_manifest(pair, caplog, tmp_path):
    old, new = pair
    file = new / "MANIFEST.json"
    file.rename(tmp_path / "elsewhere")
    file.symlink_to(tmp_path / "elsewhere")
    assert "not a regular file" in refused(old, new, caplog)


@pytest.mark.parametrize("name", ["model.safetensors", "MANIFEST.json"])
def test_a_fifo_does_not_block(pair, caplog, name):
    old, new = pair
    (new / name).unlink()
    os.mkfifo(new / name)
    assert "not a regular file" in refused(old, new, caplog)


def test_a_directory_in_place_of_a_file(pair, caplog):
    old, new = pair
    (new / "model.safetensors").unlink()
    (new / "model.safetensors").mkdir()
    refused(old, new, caplog)


def test_a_symlinked_directory_is_no_checkpoint_of_the_root(pair, tmp_path):
    old, new = pair
    new.rename(tmp_path / "elsewhere")
    new.symlink_to(tmp_path / "elsewhere")
    assert find_latest(old.parent) == old


def test_all_damaged_is_an_error_that_lists_each(pair):
    old, new = pair
    (old / "model.json").unlink()
    (new / "MANIFEST.json").write_text("{")
    with pytest.raises(CheckpointError, match="none of the 2 checkpoints") as caught:
        find_latest(old.parent)
    message = str(caught.value)
    assert "model.json is missing" in message
    assert "MANIFEST.json is damaged" in message
    assert "\n" not in message
    assert old.is_dir()
    assert new.is_dir()


def test_the_newest_is_chosen_by_number_not_by_name_or_time(save, tmp_path):
    save(10, name="step-10")
    late = save(9, name="step-9")
    os.utime(late, (2e9, 2e9))
    assert find_latest(tmp_path / "checkpoints").name == "step-10"


def forged(path, **changes):
    """Rewrite the manifest with `changes`, its own hash made to fit."""
    manifest = path / "MANIFEST.json"
    record = json.loads(manifest.read_text())
    record.update(changes)
    record.pop("self_sha256")
    from devrun.checkpoint.manifest import _self_hash

    record["self_sha256"] = _self_hash(record)
    manifest.write_bytes(strict_json.render(record))


@pytest.mark.parametrize(
    "name",
    [
        "../outside.json",
        "/etc/passwd",
        "..",
        ".",
        "",
        "a/b.json",
        "a\x00b",
        "a\nb",
        "MANIFEST.json",
        "x" * 10_000,
        "model.json ",
        7,
        None,
    ],
    ids=lambda name: repr(name)[:20],
)
def test_a_forged_manifest_cannot_name_a_file_elsewhere(save, name):
    path = save(1)
    (path.parent / "outside.json").write_text("{}")
    entry = {"name": name, "size": 2, "sha256": "0" * 64}
    forged(path, files=[entry], required=[name])
    with pytest.raises(CheckpointError) as caught:
        read_checkpoint(path, verify=False)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize(
    "changes",
    [
        {"step": "3"},
        {"step": True},
        {"step": -1},
        {"schema": 0},
        {"schema": "1"},
        {"complete": False},
        {"required": []},
        {"format": "other"},
        {"files": {}},
        {"files": [1]},
        {"files": [{"name": "a"}]},
        {"meta": []},
        {"meta": {"$unknown": 1}},
        {"environment": None},
        {"surplus": 1},
    ],
    ids=str,
)
def test_a_forged_manifest_with_a_wrong_field_is_one_line(save, changes):
    path = save(1)
    forged(path, **changes)
    with pytest.raises(CheckpointError) as caught:
        verify_checkpoint(path)
    assert "\n" not in str(caught.value)


def test_a_forged_size_is_compared_before_anything_is_read(save):
    path = save(1)
    record = json.loads((path / "MANIFEST.json").read_text())
    record["files"][0]["size"] = 1 << 60
    forged(path, files=record["files"])
    with pytest.raises(CheckpointError, match="instead of 1152921504606846976"):
        read_checkpoint(path)


def test_duplicate_keys_in_the_manifest(save):
    path = save(1)
    text = (path / "MANIFEST.json").read_text()
    doubled = text.replace('"step": 1,', '"step": 1,\n "step": 1,')
    (path / "MANIFEST.json").write_text(doubled)
    with pytest.raises(CheckpointError, match="'step' is given twice"):
        verify_checkpoint(path)


def test_a_manifest_that_is_huge(save):
    path = save(1)
    with (path / "MANIFEST.json").open("r+b") as file:
        file.truncate(1 << 34)  # sparse: takes no space
    with pytest.raises(CheckpointError, match="more than"):
        verify_checkpoint(path)


HEADERS = {
    "longer than the file": struct.pack("<Q", 1 << 60) + b"{}",
    "not JSON": struct.pack("<Q", 2) + b"xx",
    "beyond the data": struct.pack("<Q", 60)
    + b'{"a":{"dtype":"F32","shape":[9],"data_offsets":[0,36]}}'.ljust(60),
    "a shape of 2^62": struct.pack("<Q", 80)
    + b'{"a":{"dtype":"F32","shape":[4611686018427387904],"data_offsets":[0,4]}}'.ljust(
        80
    )
    + b"\0" * 4,
    "overlapping": struct.pack("<Q", 120)
    + (
        b'{"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},'
        b'"b":{"dtype":"U8","shape":[4],"data_offsets":[2,6]}}'
    ).ljust(120)
    + b"\0" * 6,
    "an unknown type": struct.pack("<Q", 60)
    + b'{"a":{"dtype":"X9","shape":[1],"data_offsets":[0,1]}}'.ljust(60)
    + b"\0",
}


class Trap:
    """Unpickling this would leave a file behind."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (os.mkdir, (str(self.path),))


@pytest.mark.parametrize("content", HEADERS.values(), ids=HEADERS.keys())
def test_a_hostile_tensor_file_is_refused_even_without_hashes(save, content):
    path = save(1)
    (path / "model.safetensors").write_bytes(content)
    record = json.loads((path / "MANIFEST.json").read_text())
    for entry in record["files"]:
        if entry["name"] == "model.safetensors":
            entry["size"] = len(content)
    forged(path, files=record["files"])
    with pytest.raises(CheckpointError, match="model.safetensors is damaged") as caught:
        read_checkpoint(path, verify=False)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "name", ["model.safetensors", "model.json", "trainer.json", "MANIFEST.json"]
)
def test_a_pickle_in_any_file_is_never_run(save, tmp_path, name):
    path = save(1)
    trap = tmp_path / "trapped"
    content = pickle.dumps(Trap(trap))
    (path / name).write_bytes(content)
    if name != "MANIFEST.json":
        record = json.loads((path / "MANIFEST.json").read_text())
        for entry in record["files"]:
            if entry["name"] == name:
                entry["size"] = len(content)
        forged(path, files=record["files"])
    with pytest.raises(CheckpointError):
        read_checkpoint(path, verify=False)
    assert not trap.exists()


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


def test_a_path_that_cannot_be_opened_is_a_reason_not_a_crash(pair):
    _, new = pair
    with pytest.raises(CheckpointError):
        read_checkpoint(new / "model.json")
    with pytest.raises(CheckpointError, match=os.strerror(errno.ENAMETOOLONG)):
        read_checkpoint(new / ("x" * 400))


def test_random_bytes_in_any_file_are_one_line(save):
    path, rng = save(1), random.Random(0)
    originals = {name: (path / name).read_bytes() for name in os.listdir(path)}
    for _ in range(150):
        name = rng.choice([n for n in originals if n != "MANIFEST.json"])
        changed = bytearray(originals[name])
        for _ in range(rng.randrange(1, 6)):
            changed[rng.randrange(len(changed))] = rng.randrange(256)
        (path / name).write_bytes(changed)
        try:  # without hashes only the form protects: a value may differ, no more
            read_checkpoint(path, verify=False)
        except CheckpointError as error:
            assert "\n" not in str(error)
        (path / name).write_bytes(originals[name])
    assert read_checkpoint(path).step == 1
