"""Configs from an attacker, through every key that takes a type: nothing runs.

What they would run leaves the file PWNED. Each is refused with status 2 and one line.
"""

import importlib
import json
import pickle
import sys
from pathlib import Path

import pytest
import torch

from devrun.cli.main import main
from devrun.interop import SCOPES
from tests.cli.conftest import CONFIG
from tests.support.configs import changed

COMMAND = "touch PWNED"
CODE = "import os; os.system('touch PWNED')"
GRAPH = {
    "type": "torch.fx.graph_module.reduce_graph_module",
    "body": {"_code": "def forward(self, x): return x"},
    "import_block": CODE,
}
SYSTEM = {"type": "os.system", "command": COMMAND}
TORCH_SYSTEM = {"type": "torch.os.system", "command": COMMAND}
PARTIAL = {"type": "torch.functools.partial", "func": "os.system"}
LOAD = {"type": "torch.load", "f": "evil.pkl", "weights_only": False}
BESIDE = {"type": "dr_beside.Net"}
SPACE = {"type": "dr_space.inner.Net"}
GPT2 = {"type": "transformers.GPT2Config", "n_layer": 1, "n_embd": 8, "n_head": 2}


def gpt(**config):
    return {"type": "transformers.GPT2LMHeadModel", "config": {**GPT2, **config}}


def auto(**arguments):
    path = "transformers.AutoModel.from_pretrained"
    return {"type": path, "pretrained_model_name_or_path": "remote", **arguments}


def images(**arguments):
    return {"data.train": {"type": "ImageFolder", "data_prefix": "pics", **arguments}}


CASES = {
    # the model and the loss
    "fx graph": {"model": GRAPH},
    "torch.load": {"model": LOAD},
    "os.system": {"model": SYSTEM},
    "a program": {"model": {"type": "torch.utils.bottleneck.__main__.main"}},
    "a file beside the config": {"model": BESIDE},
    "a folder beside the config": {"model": SPACE},
    "loss": {"loss": GRAPH},
    # transformers
    "pipeline of remote code": {"model": {"type": "transformers.pipeline"}},
    "remote code": {"model": auto(trust_remote_code=True)},
    "remote code, unasked": {"model": auto()},
    "kernels of anybody": {"model": auto(allow_all_kernels=True)},
    "a kernel of the hub": {"model": gpt(attn_implementation="evil/kernel")},
    "nested call": {
        "model": {**gpt(), "config": {"type": "transformers.pipeline", "task": "x"}}
    },
    # data sets, transforms, samplers, what makes batches
    "data set": {"data.train": SYSTEM},
    "val data set": {"data.val": LOAD},
    "data pipes that map": {
        "data.train": {
            "type": "torch.utils.data.datapipes.iter.Mapper",
            "datapipe": [COMMAND],
            "fn": "os.system",
        }
    },
    "repeated data set": {
        "data.train": {"type": "RepeatDataset", "times": 1, "dataset": TORCH_SYSTEM}
    },
    "transform": images(pipeline=[SYSTEM]),
    "transform vectorize": images(
        pipeline=[{"type": "numpy.vectorize", "pyfunc": "os.system"}]
    ),
    "transform alone": images(pipeline=TORCH_SYSTEM),
    "transform beside": images(pipeline=[{"type": "dr_beside.Flip"}]),
    "sampler": {"data.sampler": SYSTEM},
    "sampler of a loader": {"data.train_dataloader": {"sampler": GRAPH}},
    "sampler_cfg": {"data.sampler_cfg": PARTIAL},
    "collate function": {"data.collate_fn": SYSTEM},
    "collate text": {"data.collate_fn": "torch.os.system"},
    # optimizers, schedules, hooks, metrics, runners
    "optimizer": {"optimizer": {"type": "torch.os.system", "command": COMMAND}},
    "a compiler to start": {
        "device": {"type": "cpu", "compile": {"options": {"cpp.cxx": ["", COMMAND]}}}
    },
    "a variable for the loader": {
        "device": {"type": "hpu", "emulate": True, "env": {"LD_PRELOAD": "./evil.so"}}
    },
    "optimizer constructor": {
        "optimizer": {"type": "SGD", "lr": 0.1, "constructor": "torch.os.system"}
    },
    "optimizer hook": {"optimizer_config": TORCH_SYSTEM},
    "learning rate": {"lr_config": {"policy": "torch.os.system", "command": COMMAND}},
    "learning rate by text": {
        "lr_config": {"policy": "LambdaLR", "lr_lambda": f"__import__('os').{COMMAND}"}
    },
    "momentum": {"momentum_config": {"policy": "torch.os.system"}},
    "hook": {"custom_hooks": [TORCH_SYSTEM]},
    "hook beside": {"custom_hooks": [{"type": "dr_beside.Trap"}]},
    "hook closure": {
        "custom_hooks": [
            {"type": "ClosureHook", "fn_name": "before_run", "fn": "os.system"}
        ]
    },
    "logger": {"log_config": {"hooks": [TORCH_SYSTEM]}, "dry": False},
    "checkpoint hook": {"checkpoint_config": TORCH_SYSTEM, "dry": False},
    "evaluation hook": {"evaluation": TORCH_SYSTEM},
    "metric": {"evaluation": {"metric": "torch.os.system"}},
    "metric that evaluates": {"evaluation": {"metric": {"type": "numexpr.evaluate"}}},
    "runner": {"runner": {"type": "torch.os.system", "max_epochs": 1}},
    "device": {"device": "torch.os.system"},
    "timer": {"timer_config": TORCH_SYSTEM},
    # what is imported
    "import beside": {"custom_imports": {"imports": ["dr_beside"]}},
    "import a program": {"custom_imports": {"imports": ["unittest.__main__"]}},
}

BESIDE_SOURCE = """
open("PWNED", "w").close()
from torch import nn
from devrun import Hook
class Net(nn.Identity): ...
class Trap(Hook): ...
class Flip:
    def __call__(self, image): return image
"""


class Bomb:
    def __reduce__(self):
        return open, ("PWNED", "w")


@pytest.fixture
def trap(tmp_path, monkeypatch):
    """A folder as it came from elsewhere, and the current one, as by `python -m`."""
    for name in ("dr_beside.py", "dr_space/inner.py"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(BESIDE_SOURCE)
    (tmp_path / "evil.pkl").write_bytes(pickle.dumps(Bomb()))
    remote = tmp_path / "remote"
    remote.mkdir()
    mapped = {"AutoConfig": "model.Evil", "AutoModel": "model.Evil"}
    (remote / "config.json").write_text(
        json.dumps({"model_type": "evil", "auto_map": mapped})
    )
    (remote / "model.py").write_text(BESIDE_SOURCE)
    (tmp_path / "pics" / "a").mkdir(parents=True)
    image = pytest.importorskip("PIL.Image")
    image.new("RGB", (4, 4)).save(tmp_path / "pics" / "a" / "x.png")
    (tmp_path / "evil.py").write_text(BESIDE_SOURCE)
    monkeypatch.syspath_prepend("")  # what an interpreter puts there by itself
    yield tmp_path
    for name in list(sys.modules):
        if name.startswith(("dr_beside", "dr_space")):
            del sys.modules[name]
    importlib.invalidate_caches()


def check(status, text, folder):
    assert not (folder / "PWNED").exists()
    assert status == 2, text
    assert "Traceback" not in text
    assert text.splitlines()[-1].startswith("devrun: error: ")


def test_every_key_with_a_type_is_among_them():
    keys = {path.split(".")[-1] for changes in CASES.values() for path in changes}
    assert {
        "model", "loss", "train", "val", "sampler", "sampler_cfg", "collate_fn",
        "optimizer", "optimizer_config", "lr_config",
        "momentum_config", "custom_hooks", "log_config", "checkpoint_config",
        "evaluation", "runner", "device", "timer_config", "custom_imports",
    } <= keys  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_a_hostile_config_is_refused_and_runs_nothing(name, trap, train):
    changes = dict(CASES[name])
    dry = ["--dry-run"] if changes.pop("dry", True) else []
    path = trap / "hostile.json"
    path.write_text(json.dumps(changed(CONFIG, changes)))
    status, _, text = train(path, *dry)
    check(status, text, trap)


@pytest.mark.parametrize("name", ["fx graph", "transform alone", "remote code"])
def test_neither_in_yaml_nor_in_python_that_is_read(name, trap, train):
    cfg = changed(CONFIG, CASES[name])
    forms = {
        "c.yaml": json.dumps(cfg),
        "c.py": "".join(f"{key} = {value!r}\n" for key, value in cfg.items()),
    }
    for file, text in forms.items():
        (trap / file).write_text(text)
        status, _, error = train(trap / file, "--dry-run")
        check(status, error, trap)


def test_neither_by_test_nor_by_the_command_lines_changes(trap, capsys, train, config):
    (trap / "c.json").write_text(json.dumps(changed(CONFIG, {"model": GRAPH})))
    torch.save({}, trap / "w.pth")
    status = main(["test", str(trap / "c.json"), str(trap / "w.pth"), "--split", "val"])
    check(status, capsys.readouterr().err, trap)
    words = ["--cfg-options", f"model={GRAPH}", "--dry-run"]
    status, _, text = train(config(), *words)
    check(status, text, trap)


def test_a_trusted_config_may_name_what_it_likes(trap, train, config):
    path = config(
        custom_imports={"imports": ["dr_beside"]},
        custom_hooks=[{"type": "dr_beside.Trap"}],
    )
    status, _, text = train(path, "--dry-run", "--trust-config", "--no-progress")
    assert status == 0, text
    assert Path("PWNED").exists()


@pytest.mark.parametrize("scope", SCOPES)
@pytest.mark.parametrize(
    "changes",
    [
        {"default_scope": "SCOPE", "model": {"type": "ImageClassifier"}},
        {"model": {"type": "SCOPE.ImageClassifier"}},
        {"model": {"type": "SCOPE.models.ImageClassifier"}},
        {"data.train": {"type": "SCOPE.CIFAR10", "data_prefix": "pics"}},
        {"custom_hooks": [{"type": "SCOPE.EMAHook"}]},
    ],
    ids=["default", "model", "path", "data", "hook"],
)
def test_a_scope_imports_no_package_beside_the_config(scope, changes, trap, train):
    if scope in sys.modules:
        pytest.skip(f"{scope} is imported already")
    for name in SCOPES:  # with what says that it is installed
        (trap / name).mkdir()
        (trap / name / "__init__.py").write_text(BESIDE_SOURCE)
        version = {"mmcls": "0.1", "mmengine": "0.1", "mmdet": "2.0"}.get(name, "1.0")
        info = trap / f"{name}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Name: {name}\nVersion: {version}\n")
    path = trap / "configs" / "hostile.json"
    path.parent.mkdir()
    path.write_text(json.dumps(changed(CONFIG, changes)).replace("SCOPE", scope))
    status, _, text = train(path, "--dry-run")
    check(status, text, trap)
    assert "from which a config cannot import" in text.splitlines()[-1]
    assert scope not in sys.modules
    importlib.invalidate_caches()


@pytest.mark.parametrize(
    "changes",
    [
        {"default_scope": "dr_beside"},
        {"default_scope": "os"},
        {"model": {"type": "dr_beside.ImageClassifier"}},
        {"data.train": {"type": "dr_space.inner.CIFAR10"}},
        {"evaluation": {"type": "mmcv.os.system"}},
    ],
)
def test_what_is_no_scope_is_not_imported_as_one(changes, trap, train):
    path = trap / "hostile.json"
    path.write_text(json.dumps(changed(CONFIG, changes)))
    status, _, text = train(path, "--dry-run")
    check(status, text, trap)
    assert not [name for name in sys.modules if name.startswith("dr_")]
