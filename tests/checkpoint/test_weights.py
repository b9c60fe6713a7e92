"""Weights from every kind of file, with a report of what does not fit."""

import logging
import os
import pickle
import resource
import struct
import time
from collections import OrderedDict

import numpy as np
import pytest
import safetensors.torch
import torch
from torch import nn

from devrun.checkpoint import (
    CheckpointLoader,
    _load_checkpoint,
    _load_checkpoint_with_prefix,
    get_state_dict,
    load_checkpoint,
    load_state_dict,
    save_checkpoint,
    write_checkpoint,
)
from devrun.errors import (
    CheckpointError,
    ConfigError,
    ConfigTypeError,
    UnsupportedFeatureError,
)


def net(seed=0, out=2):
    torch.manual_seed(seed)
    return nn.Sequential(
        OrderedDict(
            conv=nn.Conv2d(3, 4, 3), bn=nn.BatchNorm2d(4), head=nn.Linear(4, out)
        )
    )


def equal(first, second):
    return all(
        torch.equal(value, second.state_dict()[key])
        for key, value in first.state_dict().items()
    )


WRITERS = {
    "mmcv": lambda model, path: save_checkpoint(model, path / "epoch_1.pth"),
    "bare": lambda model, path: torch.save(model.state_dict(), path / "bare.pth"),
    "model key": lambda model, path: torch.save(
        {"model": model.state_dict(), "epoch": 3}, path / "timm.pt"
    ),
    "old format": lambda model, path: torch.save(
        model.state_dict(), path / "old.pth", _use_new_zipfile_serialization=False
    ),
    "safetensors": lambda model, path: safetensors.torch.save_file(
        model.state_dict(), path / "model.safetensors"
    ),
    "devrun": lambda model, path: write_checkpoint(
        path, "step-1", {"model": model.state_dict()}, {"step": 1}
    ),
    "data parallel": lambda model, path: torch.save(
        {"state_dict": nn.DataParallel(model).state_dict()}, path / "dp.pth"
    ),
}


@pytest.mark.parametrize("write", WRITERS.values(), ids=WRITERS.keys())
def test_every_kind_of_file_loads(tmp_path, write, caplog):
    model, other = net(), net(seed=1)
    write(model, tmp_path)
    (path,) = (p for p in tmp_path.iterdir() if p.name != "latest.json")
    with caplog.at_level(logging.INFO):
        load_checkpoint(other, path, strict=True)
    assert equal(model, other)
    assert "loaded all 9 tensors" in caplog.text


def test_mismatches_are_one_record_that_names_each(caplog):
    state = net(out=5).state_dict()
    state["extra"] = torch.zeros(1)
    del state["conv.bias"]
    model = net(seed=1)
    with caplog.at_level(logging.INFO):
        load_state_dict(model, state)
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    text = record.getMessage()
    assert "1 missing: conv.bias" in text
    assert "1 unexpected: extra" in text
    assert "head.weight (file [5, 4], model [2, 4])" in text
    assert torch.equal(model.conv.weight, state["conv.weight"])


def test_a_prefix_more_or_less_is_found_and_said(caplog):
    model, other, wrapped = net(), net(1), nn.Sequential(OrderedDict(backbone=net(1)))
    state = {f"backbone.{key}": value for key, value in model.state_dict().items()}
    with caplog.at_level(logging.INFO):
        load_state_dict(other, state, strict=True)
        load_state_dict(wrapped, model.state_dict(), strict=True)
    assert equal(model, other) and equal(model, wrapped.backbone)
    assert "keys such as backbone.conv.weight as conv.weight" in caplog.text
    assert "keys such as conv.weight as backbone.conv.weight" in caplog.text


@pytest.mark.parametrize(
    ("key", "pairs"),
    [
        ("a", [["a", "a" * 500]] * 5),
        ("a" * 200, [("a", r"\g<0>" * 50)]),
    ],
)
def test_a_key_stays_as_short_as_a_name(tmp_path, key, pairs):
    torch.save({key: torch.zeros(1)}, tmp_path / "b.pth")
    with pytest.raises(CheckpointError, match="has more than 256 characters") as caught:
        load_checkpoint(net(), tmp_path / "b.pth", revise_keys=pairs)
    assert len(str(caught.value)) < 500


def test_hostile_key_names_cannot_forge_a_line(caplog):
    state = {**net().state_dict(), "x\nERROR forged\x1b[31m": torch.zeros(1)}
    with caplog.at_level(logging.WARNING):
        load_state_dict(net(), state)
    assert caplog.records[0].getMessage().count("\n") == 1  # of the table
    assert "\nERROR" not in caplog.records[0].getMessage()
    assert "\x1b" not in caplog.records[0].getMessage()


def test_a_wrapped_model_takes_bare_weights():
    model = net()
    other = nn.DataParallel(net(1))
    load_state_dict(other, model.state_dict(), strict=True)
    assert equal(model, other.module)
    assert get_state_dict(other).keys() == model.state_dict().keys()
    assert get_state_dict(model).keys() == model.state_dict().keys()


def test_one_submodule_is_loaded_by_its_prefix(tmp_path):
    save_checkpoint(net(), tmp_path / "a.pth")
    found = _load_checkpoint_with_prefix("head", tmp_path / "a.pth")
    assert set(found) == {"weight", "bias"}
    with pytest.raises(CheckpointError, match="did you mean 'head'"):
        _load_checkpoint_with_prefix("heads", tmp_path / "a.pth")


def test_a_missing_file_is_both_kinds_of_error_and_names_the_nearest(tmp_path):
    save_checkpoint(net(), tmp_path / "epoch_10.pth")
    for wanted in ("epoch_1O.pth", "model.safetensors"):
        with pytest.raises(FileNotFoundError):
            load_checkpoint(net(), tmp_path / wanted)
    with pytest.raises(CheckpointError, match=r"did you mean 'epoch_10\.pth'"):
        _load_checkpoint(tmp_path / "epoch_1O.pth")


def test_a_scheme_may_be_registered(monkeypatch):
    monkeypatch.setattr(CheckpointLoader, "_schemes", {})
    model = net()

    @CheckpointLoader.register_scheme(prefixes=["mine://", "my://"])
    def load_mine(filename, map_location):
        return {"state_dict": model.state_dict(), "meta": {"from": filename}}

    other = net(1)
    assert load_checkpoint(other, "mine://x")["meta"] == {"from": "mine://x"}
    assert equal(model, other)
    with pytest.raises(ConfigError, match="force=True"):
        CheckpointLoader.register_scheme("my://", load_mine)
    CheckpointLoader.register_scheme("my://", load_mine, force=True)
    with pytest.raises(ConfigTypeError):
        CheckpointLoader.register_scheme([3], load_mine, force=True)


class Trap:
    def __init__(self, path):
        self.path = str(path)

    def __reduce__(self):
        return (os.mkdir, (self.path,))


def test_a_refused_pickle_says_what_it_names_and_what_to_do(tmp_path):
    torch.save({"state_dict": Trap(tmp_path / "x")}, tmp_path / "a.pth")
    with pytest.raises(CheckpointError, match=r"posix\.mkdir.*--allow-pickle"):
        load_checkpoint(net(), tmp_path / "a.pth")


LEGACY = b"".join(
    pickle.dumps(part, 2) for part in (torch.serialization.MAGIC_NUMBER, 1001, {})
)
NO_ENTRY = struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, 1, 1, 2**32 - 400, 4, 0)
SPARSE = {  # head, size, tail: after a power cut, and by design
    "zeros": (b"", 2**31, b""),
    "gzip": (b"\x1f\x8b\x08\0\0\0\0\0\0\3", 2**31, b""),
    "zip that ends in zeros": (b"PK\3\4 archive", 2**31, b""),
    "huge table of contents": (b"PK\3\4", 2**32 - 200, NO_ENTRY),
    "huge text in a pickle": (LEGACY + b"\x80\2X\xff\xff\xff\x7f", 2**33, b""),
}


@pytest.mark.parametrize("kind", SPARSE)
def test_a_sparse_file_is_refused_at_once(tmp_path, kind):
    """Several GiB by name, a page on the disk: time and memory stay small."""
    head, size, tail = SPARSE[kind]
    with open(tmp_path / "a.pth", "wb") as file:
        file.write(head)
        file.truncate(size)
        file.seek(0, 2)
        file.write(tail)
    began, before = time.process_time(), resource.getrusage(resource.RUSAGE_SELF)
    with pytest.raises(CheckpointError, match="damaged|no torch file") as caught:
        load_checkpoint(net(), tmp_path / "a.pth")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before.ru_maxrss
    assert time.process_time() - began < 1
    assert peak < 100 << 10  # KiB
    assert "\n" not in str(caught.value)


def test_entries_that_share_their_bytes_are_refused(tmp_path):
    """A small file that would be large in memory."""
    torch.save({f"w{i}": torch.zeros(1000) for i in range(50)}, tmp_path / "a.pth")
    data = bytearray((tmp_path / "a.pth").read_bytes())
    at = len(data)
    while (at := data.rfind(b"PK\1\2", 0, at)) >= 0:
        struct.pack_into("<2L", data, at + 20, 40_000, 40_000)
    (tmp_path / "a.pth").write_bytes(data)
    with pytest.raises(CheckpointError, match="overlap"):
        load_checkpoint(net(), tmp_path / "a.pth")


@pytest.mark.parametrize("keep", [0, 1, 10, 500, -100, -1])
@pytest.mark.parametrize("name", ["a.pth", "a.safetensors"])
def test_a_truncated_file_is_one_line(tmp_path, name, keep):
    path = tmp_path / name
    if name == "a.pth":
        save_checkpoint(net(), path)
    else:
        safetensors.torch.save_file(net().state_dict(), path)
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(CheckpointError) as caught:
        load_checkpoint(net(), path)
    assert "\n" not in str(caught.value)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    "content", [{}, [], 3, {"state_dict": {}}, {"a": "text"}, {1: torch.zeros(1)}]
)
def test_a_file_without_weights_is_one_line(tmp_path, content):
    torch.save(content, tmp_path / "a.pth")
    with pytest.raises(CheckpointError, match="no weights in"):
        load_checkpoint(net(), tmp_path / "a.pth")


def test_saving_keeps_classes_and_refuses_what_cannot_be_loaded(tmp_path):
    model = net()
    model.CLASSES = ("cat", "dog")
    meta = {"score": np.float32(0.5), "matrix": np.eye(2), "deep": [{"n": np.int64(3)}]}
    save_checkpoint(model, tmp_path / "a.pth", meta=meta)
    found = _load_checkpoint(tmp_path / "a.pth")["meta"]
    assert found["CLASSES"] == ("cat", "dog")
    assert found["score"] == 0.5
    assert found["deep"] == [{"n": 3}]
    assert torch.equal(found["matrix"], torch.eye(2, dtype=torch.float64))
    with pytest.raises(CheckpointError, match=r"checkpoint\['meta'\]\['hook'\]"):
        save_checkpoint(model, tmp_path / "b.pth", meta={"hook": object()})
    assert not (tmp_path / "b.pth").exists()
    with pytest.raises(TypeError, match="meta must be a dict"):
        save_checkpoint(model, tmp_path / "b.pth", meta=[1])
    with pytest.raises(UnsupportedFeatureError):
        save_checkpoint(model, tmp_path / "b.pth", file_client_args={})


def test_a_map_location_is_where_the_weights_come(tmp_path):
    save_checkpoint(net(), tmp_path / "a.pth")
    found = _load_checkpoint(tmp_path / "a.pth", map_location="meta")
    assert found["state_dict"]["conv.weight"].is_meta
