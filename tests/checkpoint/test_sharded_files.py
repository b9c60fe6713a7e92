"""Damaged and hostile files of shards: refused in one line, nothing in them is run."""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import random
import zipfile

import pytest
import torch
import torch.distributed as dist
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

from devrun.checkpoint import (
    fileops,
    find_latest,
    read_checkpoint,
    strict_json,
    verify_checkpoint,
    write_checkpoint,
)
from devrun.checkpoint.manifest import Manifest
from devrun.errors import CheckpointError

PARTS = {
    "bits": torch.arange(6, dtype=torch.bfloat16).view(2, 3),
    "complex": torch.tensor([1 + 2j, 3j]),
    "empty": torch.zeros(0, 3),
    "number": torch.tensor(7),
    "weight": torch.randn(5, 4, generator=torch.Generator().manual_seed(1)),
}


@pytest.fixture
def mesh():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield init_device_mesh("cpu", (1,))
    dist.destroy_process_group()


@pytest.fixture
def path(mesh, tmp_path):
    """Of one process; `number` is not sharded."""
    model = {
        name: tensor
        if name == "number"
        else distribute_tensor(tensor, mesh, [Shard(0)])
        for name, tensor in PARTS.items()
    }
    parts = {"model": model, "trainer": {"note": "x"}}
    return write_checkpoint(tmp_path / "saved", "step-00000001", parts, {"step": 1})


def rewrite(path, name, data):
    """Change a file, and list it in the manifest as it is then."""
    (path / name).write_bytes(data)
    record = json.loads((path / "MANIFEST.json").read_text())
    for entry in record["files"]:
        if entry["name"] == name:
            entry.update(size=len(data), sha256=hashlib.sha256(data).hexdigest())
    del record["self_sha256"]
    digest = hashlib.sha256(strict_json.canonical(record)).hexdigest()
    whole = strict_json.render({**record, "self_sha256": digest})
    (path / "MANIFEST.json").write_bytes(whole)
    Manifest.parse(whole)


def index_of(path):
    return json.loads((path / ".shards.json").read_text())


def test_every_type_comes_back(path):
    model = read_checkpoint(path)["model"]
    assert model.keys() == PARTS.keys()
    for name, tensor in PARTS.items():
        assert model[name].dtype is tensor.dtype
        assert torch.equal(model[name], tensor)


def test_a_replicated_tensor_is_written_once(mesh, tmp_path):
    whole = distribute_tensor(PARTS["weight"], mesh, [Replicate()])
    path = write_checkpoint(tmp_path, "x", {"model": {"a": whole}}, {"step": 0})
    assert torch.equal(read_checkpoint(path)["model"]["a"], PARTS["weight"])


def test_a_channels_last_weight_keeps_its_strides(mesh, tmp_path):
    weight = torch.randn(4, 3, 2, 2).to(memory_format=torch.channels_last)
    sharded = distribute_tensor(weight, mesh, [Shard(0)])
    path = write_checkpoint(tmp_path, "x", {"model": {"a": sharded}}, {"step": 0})
    found = read_checkpoint(path)["model"]["a"]
    assert torch.equal(found, weight)
    assert found.stride() == sharded.stride()


def test_the_tools_of_torch_read_it(path, tmp_path):
    dcp_to_torch_save(str(path), tmp_path / "x.pt")
    found = torch.load(tmp_path / "x.pt")
    assert torch.equal(found["model/weight"], PARTS["weight"])


def test_a_part_without_shards_is_read_without_them(path):
    (path / "__0_0.distcp").write_bytes(b"x" * (path / "__0_0.distcp").stat().st_size)
    assert read_checkpoint(path, parts=["trainer"])["trainer"] == {"note": "x"}


@pytest.mark.parametrize(
    "name", [".metadata", ".shards.json", "__0_0.distcp", "model.json"]
)
@pytest.mark.parametrize("damage", ["flip", "cut", "remove"])
def test_damage_is_found_and_named(path, name, damage):
    file = path / name
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(bytes(data) if damage == "flip" else data[:-1])
    if damage == "remove":
        file.unlink()
    with pytest.raises(CheckpointError, match=name):
        verify_checkpoint(path)
    if (name, damage) != (".metadata", "flip"):  # which nothing here ever reads
        with pytest.raises(CheckpointError, match=name) as caught:
            read_checkpoint(path)
        assert "\n" not in str(caught.value)
    with pytest.raises(CheckpointError, match="none of the 1 checkpoints"):
        find_latest(path.parent)


def test_the_pickle_beside_it_is_never_read(path, tmp_path):
    class Evil:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "owned"),)

    rewrite(path, ".metadata", pickle.dumps(Evil()))
    assert torch.equal(read_checkpoint(path)["model"]["weight"], PARTS["weight"])
    assert verify_checkpoint(path)
    assert not (tmp_path / "owned").exists()


def test_a_pickle_inside_a_piece_is_never_read(path, tmp_path):
    class Evil:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "owned"),)

    index = index_of(path)
    (piece,) = index["tensors"]["model/weight"]["pieces"]
    with zipfile.ZipFile(path / "new", "w") as archive:
        archive.writestr("archive/data.pkl", pickle.dumps(Evil()))
        archive.writestr("archive/data/0", b"\1" * 80)
    data = (path / "new").read_bytes()
    (path / "new").unlink()
    whole = (path / "__0_0.distcp").read_bytes()
    piece.update(at=len(whole), length=len(data))
    rewrite(path, "__0_0.distcp", whole + data)
    rewrite(path, ".shards.json", json.dumps(index).encode())
    expected = torch.full((80,), 1, dtype=torch.uint8).view(torch.float32).view(5, 4)
    assert torch.equal(read_checkpoint(path)["model"]["weight"], expected)
    assert not (tmp_path / "owned").exists()


HOSTILE = {
    "a file outside": {"file": "../other/__0_0.distcp"},
    "an absolute file": {"file": "/etc/passwd"},
    "another kind of file": {"file": "model.json"},
    "a file that is not listed": {"file": "__9_0.distcp"},
    "a place behind the end": {"at": 1 << 40},
    "a place before the start": {"at": -1},
    "a length of nothing": {"length": 0},
    "a huge length": {"length": 1 << 62},
    "a box outside": {"offsets": [1, 0]},
    "a box of other dimensions": {"offsets": [0], "sizes": [5]},
    "a box that is a part only": {"sizes": [4, 4]},
    "a number that is none": {"at": True},
    "a text for a number": {"offsets": ["0", "0"]},
    "a place inside another": {"at": 64, "length": 700},
    "an unknown fact": {"transform": "x"},
}


@pytest.mark.parametrize("change", HOSTILE.values(), ids=HOSTILE)
def test_a_place_that_cannot_be_is_refused(path, change, monkeypatch):
    index = index_of(path)
    index["tensors"]["model/weight"]["pieces"][0].update(change)
    opened = []
    real = fileops.reading

    def watched(name, *rest):
        opened.append(name)
        return real(name, *rest)

    monkeypatch.setattr(fileops, "reading", watched)
    rewrite(path, ".shards.json", json.dumps(index).encode())
    with pytest.raises(CheckpointError, match=r"\.shards\.json is damaged") as caught:
        read_checkpoint(path)
    assert "\n" not in str(caught.value)
    assert "__0_0.distcp" not in opened


ABSURD = {
    "a shape that no memory holds": {"shape": [1 << 40, 1 << 20]},
    "a shape that overflows": {"shape": [1 << 62, 1 << 62]},
    "many dimensions": {"shape": [1] * 100},
    "a negative shape": {"shape": [-5, 4]},
    "a type of another module": {"dtype": "nn"},
    "a type that is none": {"dtype": "load"},
    "a larger type": {"dtype": "complex128"},
    "no pieces": {"pieces": []},
    "pieces that are none": {"pieces": [1]},
}


@pytest.mark.parametrize("change", ABSURD.values(), ids=ABSURD)
def test_a_tensor_that_cannot_be_is_refused(path, change):
    index = index_of(path)
    index["tensors"]["model/weight"].update(change)
    rewrite(path, ".shards.json", json.dumps(index).encode())
    with pytest.raises(CheckpointError, match=r"(shards\.json|distcp) is damaged"):
        read_checkpoint(path)


def test_pieces_that_overlap_or_leave_a_gap_are_refused(path):
    index = index_of(path)
    tensor = index["tensors"]["model/weight"]
    (piece,) = tensor["pieces"]
    halves = [
        {**piece, "offsets": [start, 0], "sizes": [rows, 4], "at": at, "length": 160}
        for start, rows, at in ((0, 3, 0), (1, 2, 200))
    ]
    tensor["pieces"] = halves
    rewrite(path, ".shards.json", json.dumps(index).encode())
    with pytest.raises(CheckpointError, match="overlap"):
        read_checkpoint(path)


def test_a_compressed_piece_is_not_unpacked(path):
    index = index_of(path)
    facts = index["tensors"]["model/weight"]
    with zipfile.ZipFile(path / "new", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/data/0", bytes(80))
    data = (path / "new").read_bytes()
    (path / "new").unlink()
    facts["pieces"][0].update(at=0, length=len(data))
    index["tensors"] = {"model/weight": facts}
    rewrite(path, "__0_0.distcp", data)
    rewrite(path, ".shards.json", json.dumps(index).encode())
    with pytest.raises(CheckpointError, match="instead of 80"):
        read_checkpoint(path)


@pytest.mark.parametrize("name", [".shards.json", "__0_0.distcp"])
def test_random_bytes_with_a_matching_manifest_are_one_line(path, name):
    """Whatever is in the file, it is a CheckpointError or exactly a checkpoint."""
    dice, good = random.Random(5), (path / name).read_bytes()
    for _ in range(150):
        data = bytearray(good)
        for _ in range(dice.randint(1, 4)):
            data[dice.randrange(len(data))] = dice.randrange(256)
        rewrite(path, name, bytes(data))
        try:
            read_checkpoint(path)
        except CheckpointError as error:
            assert "\n" not in str(error)
