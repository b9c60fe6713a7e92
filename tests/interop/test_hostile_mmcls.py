"""Configs from an attacker that name MMClassification's components: nothing runs."""

from __future__ import annotations

import json
import os
import pickle

import pytest
import torch

from devrun.cli.main import main
from devrun.errors import DevrunError
from devrun.scopes import within
from devrun.trust import granted
from tests.support.configs import changed

pytestmark = [
    pytest.mark.filterwarnings(f"ignore::{kind}")
    for kind in ("DeprecationWarning", "FutureWarning", "UserWarning")
]


class Bomb:
    def __reduce__(self):
        return open, ("PWNED", "w")


CONFIG = {
    "default_scope": "mmcls",
    "model": {
        "type": "ImageClassifier",
        "backbone": {"type": "LeNet5", "num_classes": 10},
        "head": {"type": "ClsHead", "loss": {"type": "CrossEntropyLoss"}},
    },
    "data": {
        "samples_per_gpu": 2,
        "train": {"type": "CIFAR10", "data_prefix": "cifar", "pipeline": []},
    },
    "optimizer": {"type": "SGD", "lr": 0.1},
    "runner": {"type": "EpochBasedRunner", "max_epochs": 1},
}
FAR = {"type": "LoadImageFromFile"}
FOLDER = {"type": "CustomDataset", "data_prefix": "pics", "pipeline": []}
SOURCE = 'open("PWNED", "w").close()\n'


def reading(**client):
    step = {**FAR, "file_client_args": client}
    return {"data.train": {**FOLDER, "pipeline": [step]}}


CASES = {
    "pickled batches": {},
    "pickled weights": {
        "model.init_cfg": {"type": "Pretrained", "checkpoint": "evil.pth"}
    },
    "pickled weights of a part": {
        "model.head.init_cfg": {"type": "Pretrained", "checkpoint": "evil.pth"}
    },
    "pickled weights, the old way": {"model.pretrained": "evil.pth"},
    "weights from the network": {"model.pretrained": "https://example.org/x.pth"},
    "weights of a zoo": {"model.pretrained": "open-mmlab://resnet50"},
    "a storage that imports": reading(backend="memcached", server_list_cfg="x"),
    "a folder to import from": reading(backend="disk", sys_path="."),
    "a storage by its prefix": reading(prefix="s3"),
    "data on the network": {
        "data.train": {**FOLDER, "data_prefix": "http://example.org/x"}
    },
    "whatever albumentations has": {
        "data.train": {
            **FOLDER,
            "pipeline": [{"type": "Albu", "transforms": [{"type": "load"}]}],
        }
    },
    "pickled weights of timm": {
        "model.backbone": {
            "type": "TIMMBackbone",
            "model_name": "resnet18",
            "checkpoint_path": "evil.pth",
        }
    },
    "a folder of timm": {
        "model.backbone": {"type": "TIMMBackbone", "model_name": "local-dir:hub"}
    },
    "a path in a part": {"model.backbone": {"type": "os.system", "command": "x"}},
    "a path in a pipeline": {
        "data.train": {**FOLDER, "pipeline": [{"type": "evil.Flip"}]}
    },
    "a scope that is none": {"default_scope": "evil"},
    "a module as scope": {"model.type": "evil.ImageClassifier"},
    "their dotted path": {
        "default_scope": "devrun",
        "data.train.type": "mmcls.datasets.CIFAR10",
    },
}


@pytest.fixture
def trap(mmcls, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "evil.py").write_text(SOURCE)
    torch.save({"state_dict": {"x": Bomb()}}, tmp_path / "evil.pth")
    folder = tmp_path / "cifar" / "cifar-10-batches-py"
    folder.mkdir(parents=True)
    names = [f"data_batch_{number}" for number in range(1, 6)]
    for name in (*names, "test_batch", "batches.meta"):
        (folder / name).write_bytes(pickle.dumps(Bomb()))
    (tmp_path / "pics" / "a").mkdir(parents=True)
    image = pytest.importorskip("PIL.Image")
    image.new("RGB", (4, 4)).save(tmp_path / "pics" / "a" / "x.png")
    return tmp_path


@pytest.mark.parametrize("name", CASES)
def test_nothing_runs_and_nothing_is_fetched(name, trap, capsys, monkeypatch):
    asked = []

    def fetch(*args, **kwargs):
        asked.append(args)
        raise OSError("no network here")

    monkeypatch.setattr("urllib.request.urlopen", fetch)
    path = trap / "hostile.json"
    path.write_text(json.dumps(changed(CONFIG, CASES[name])))
    words = ["--device", "cpu", "--work-dir", "w", "--no-progress"]
    status = main(["train", str(path), *words])
    text = capsys.readouterr().err
    assert not (trap / "PWNED").exists()
    assert not asked
    assert status in (2, 3, 4), text
    assert "Traceback" not in text
    assert text.splitlines()[-1].startswith("devrun: error: ")


def test_their_files_are_read_without_running_them(trap):
    import mmcv

    with within("mmcls"):
        (trap / "x.yaml").write_text("!!python/object/apply:os.system [touch PWNED]")
        (trap / "x.pkl").write_bytes(pickle.dumps(Bomb()))
        (trap / "good.pkl").write_bytes(pickle.dumps({"a": [1, "b"]}))
        for name in ("x.yaml", "x.pkl"):
            with pytest.raises(Exception, match="(?i)python/object|not only numbers"):
                mmcv.load(name)
        assert mmcv.load("good.pkl") == {"a": [1, "b"]}
        mmcv.dump([1], "own.pkl")
        assert mmcv.load("own.pkl") == [1]
    assert not os.path.exists("PWNED")


def test_a_trusted_config_has_their_own_readers(trap):
    import mmcv

    with within("mmcls"), granted(everything=True):
        (trap / "x.pkl").write_bytes(pickle.dumps(Bomb()))
        mmcv.load("x.pkl").close()
    assert (trap / "PWNED").exists()


def test_a_package_beside_the_config_is_not_imported(trap, capsys):
    (trap / "mmcls").mkdir()
    (trap / "mmcls" / "__init__.py").write_text(SOURCE)
    (trap / "configs").mkdir()
    path = trap / "configs" / "c.json"
    path.write_text(json.dumps({k: v for k, v in CONFIG.items() if k[0] != "d"}))
    status = main(["train", str(path), "--device", "cpu", "--work-dir", "w"])
    assert status == 2, capsys.readouterr().err
    assert not (trap / "PWNED").exists()


def test_a_config_cannot_have_another_executed(trap):
    import mmcv

    from devrun.interop.openmmlab.guard import guarded

    with within("mmcls"), guarded(), pytest.raises(DevrunError, match="executed"):
        mmcv.Config.fromfile("evil.py")
    assert not (trap / "PWNED").exists()
