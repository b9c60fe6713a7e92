"""Damaged and hostile files of shards: refused in one line, nothing in them is run."""

import hashlib
import json
import random

import pytest
import torch
import torch.distributed as dist
from safetensors import safe_open
from safetensors.torch import save
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

from devrun.checkpoint import (
    find_latest,
    read_checkpoint,
    verify_checkpoint,
    write_checkpoint,
)
from devrun.checkpoint.manifest import Manifest, _sealed
from devrun.errors import CheckpointError

PARTS = {
    "bits": torch.arange(6, dtype=torch.bfloat16).view(2, 3),
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
    whole = _sealed(record)
    (path / "MANIFEST.json").write_bytes(whole)
    Manifest.parse(whole)


FILE = "shard-00001-model-00001-of-00001.safetensors"


def test_every_type_comes_back(path):
    model = read_checkpoint(path)["model"]
    assert model.keys() == PARTS.keys()
    for name, tensor in PARTS.items():
        assert model[name].dtype is tensor.dtype
        assert torch.equal(model[name], tensor)


def test_a_type_that_the_files_do_not_have_is_refused(mesh, tmp_path):
    spread = distribute_tensor(torch.tensor([1 + 2j, 3j]), mesh, [Shard(0)])
    with pytest.raises(CheckpointError, match=r"model/a .*complex64.*full: true"):
        write_checkpoint(tmp_path, "x", {"model": {"a": spread}}, {"step": 0})
    assert not list(tmp_path.iterdir())


def test_a_replicated_tensor_is_written_once(mesh, tmp_path):
    whole = distribute_tensor(PARTS["weight"], mesh, [Replicate()])
    path = write_checkpoint(tmp_path, "x", {"model": {"a": whole}}, {"step": 0})
    assert torch.equal(read_checkpoint(path)["model"]["a"], PARTS["weight"])


def test_other_programs_read_the_files(path):
    with safe_open(path / FILE, framework="pt") as file:
        assert torch.equal(file.get_tensor("model/weight"), PARTS["weight"])


def test_a_part_without_shards_is_read_without_them(path):
    (path / FILE).write_bytes(b"x" * (path / FILE).stat().st_size)
    assert read_checkpoint(path, parts=["trainer"])["trainer"] == {"note": "x"}


@pytest.mark.parametrize("name", [FILE, "model.json"])
@pytest.mark.parametrize("damage", ["flip", "cut", "remove"])
def test_damage_is_found_and_named(path, name, damage):
    file = path / name
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(bytes(data) if damage == "flip" else data[:-1])
    if damage == "remove":
        file.unlink()
    for read in (verify_checkpoint, read_checkpoint):
        with pytest.raises(CheckpointError, match=name) as caught:
            read(path)
        assert str(caught.value).isprintable()
    with pytest.raises(CheckpointError, match="none of the 1 checkpoints"):
        find_latest(path.parent)


HOSTILE = {
    "no offsets": None,
    "offsets that are no JSON": "{",
    "offsets nested deeply": "[" * 100_000,
    "offsets that are a list": "[]",
    "none of this tensor": "{}",
    "far behind the end": {"saved_offsets": [1 << 40, 0]},
    "behind every end": {"saved_offsets": [1 << 62, 1 << 62]},
    "before the start": {"saved_offsets": [-5, 0]},
    "text": {"saved_offsets": ["0", "0"]},
    "too few": {"saved_offsets": [0]},
    "nothing": {"saved_offsets": None},
}


@pytest.mark.parametrize("offsets", HOSTILE.values(), ids=HOSTILE)
def test_a_place_that_cannot_be_is_refused(path, offsets):
    """Before there is memory for a tensor of such a size."""
    about = offsets if isinstance(offsets, str) else None
    if isinstance(offsets, dict):
        about = json.dumps({"model/weight": offsets})
    metadata = {} if about is None else {"DCP_SHARDING_INFO": about}
    data = save({"model/weight": PARTS["weight"]}, metadata)
    rewrite(path, FILE, data)
    with pytest.raises(CheckpointError) as caught:
        read_checkpoint(path)
    assert str(caught.value).isprintable()


def test_random_bytes_with_a_matching_manifest_are_one_line(path):
    """Whatever is in the file, it is a CheckpointError or exactly a checkpoint."""
    dice, good = random.Random(5), (path / FILE).read_bytes()
    for _ in range(150):
        data = bytearray(good)
        for _ in range(dice.randint(1, 4)):
            data[dice.randrange(len(data))] = dice.randrange(256)
        rewrite(path, FILE, bytes(data))
        try:
            read_checkpoint(path)
        except CheckpointError as error:
            assert str(error).isprintable()
