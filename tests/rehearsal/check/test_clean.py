"""`devrun check` says nothing of programs in which nothing is wrong."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil

import pytest
import yaml

from tests.cli.conftest import CONFIG
from tests.rehearsal.check.conftest import ROOT, SCRIPT
from tests.support import zygote

EVERYWHERE = (
    ("cpu", ""),
    ("cuda", ""),
    ("hpu", "lazy"),
    ("hpu", "compile"),
    ("ipu", ""),
)
PACKAGES = ("timm", "torchvision")


def images(shape, classes=10):
    kind = {"type": "SyntheticImages", "shape": shape, "num_classes": classes}
    return {"train": {**kind, "num_samples": 64}, "val": {**kind, "num_samples": 16}}


def of_images(model, shape=(3, 32, 32), **changes):
    sections = {k: v for k, v in CONFIG.items() if k not in ("device", "log_config")}
    data = {"samples_per_gpu": 8, **images(list(shape))}
    return {**sections, "model": model, "data": data, **changes}


def of_tokens(model):
    kind = {"type": "TextCorpus", "block_size": 16, "max_bytes": 4096}
    data = {"samples_per_gpu": 8, "train": kind, "val": {**kind, "split": "val"}}
    optimizer = {"type": "AdamW", "lr": 1e-3}
    runner = {"type": "IterBasedRunner", "max_iters": 20}
    return {"model": model, "data": data, "optimizer": optimizer, "runner": runner}


GPT = {"type": "GPT", "vocab_size": 256, "block_size": 16, "n_layer": 2, "n_head": 2,
       "n_embd": 16, "dropout": 0.1}  # fmt: skip
VIT = {"type": "VisionTransformer", "img_size": 32, "patch_size": 8, "embed_dim": 16,
       "depth": 2, "num_heads": 2, "num_classes": 10}  # fmt: skip
HF_GPT = {
    "type": "transformers.AutoModelForCausalLM.from_config",
    "config": {"type": "transformers.GPT2Config", "vocab_size": 256, "n_positions": 16,
               "n_embd": 16, "n_layer": 2, "n_head": 2},
}  # fmt: skip
TORCHVISION = {"type": "torchvision.models.resnet18", "num_classes": 10}
CONFIGS = {
    "an MLP": of_images({"type": "MLP", "in_features": 48, "hidden": [8],
                         "num_classes": 10}, (3, 4, 4)),
    "a ResNet": of_images({"type": "ResNet", "stem": "cifar", "stage_blocks": [1, 1],
                           "base_channels": 8, "num_classes": 10}),
    "a ResNet in bf16, accumulated": of_images(
        {"type": "ResNet", "stem": "cifar", "stage_blocks": [1], "base_channels": 8,
         "num_classes": 10},
        optimizer_config={"cumulative_iters": 2, "grad_clip": {"max_norm": 1.0}},
    ),
    "a GPT": of_tokens(GPT),
    "a ViT": of_images(VIT),
    "a ResNet of torchvision": of_images(TORCHVISION),
    "a model of timm": of_images(
        {"type": "timm.create_model", "model_name": "test_resnet", "num_classes": 10}
    ),
}  # fmt: skip
FILES = {
    "the digits": "configs/digits/resnet8_digits.yaml",
    "a GPT on Python's source": "configs/gpt/gpt_tiny_stdlib.yaml",
    "a model of one's own": "examples/own_model.yaml",
    "a port that is done": "examples/porting/anywhere.yaml",
}


def findings(path, device, mode, module=""):
    words = [SCRIPT, path, device, mode, module]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *_given()])}
    done = zygote.run(words, env=env, cwd=path.parent, timeout=200)
    assert "NOTES" in done.stdout, done.stderr
    notes = json.loads(done.stdout.rpartition("NOTES ")[2])
    assert notes["stage"] is None, notes
    return [(f["severity"], f["kind"], f["what"], f["site"]) for f in notes["findings"]]


def _given():
    return os.environ.get("PYTHONPATH", "").split(os.pathsep)


@pytest.mark.slow
@pytest.mark.parametrize(("device", "mode"), EVERYWHERE)
@pytest.mark.parametrize("name", CONFIGS)
def test_nothing_is_said_of_a_clean_training(tmp_path, name, device, mode):
    for package in PACKAGES:
        if package in name and importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed")
    path = tmp_path / "clean.yaml"
    path.write_text(yaml.safe_dump(CONFIGS[name]))
    assert findings(path, device, mode) == []


@pytest.mark.slow
@pytest.mark.parametrize(("device", "mode"), EVERYWHERE)
@pytest.mark.parametrize("name", FILES)
def test_nothing_is_said_of_what_is_shipped(tmp_path, name, device, mode):
    folder = tmp_path / "copy"
    for part in ("configs", "examples"):
        shutil.copytree(ROOT / part, folder / part)
    path = folder / FILES[name]
    module = path.stem if path.with_suffix(".py").exists() else ""
    assert findings(path, device, mode, module) == []


@pytest.mark.slow
@pytest.mark.parametrize(("device", "mode"), EVERYWHERE[:4])
def test_a_model_of_transformers_is_clean_but_for_what_it_does_itself(
    tmp_path, device, mode
):
    pytest.importorskip("transformers")
    path = tmp_path / "clean.yaml"
    path.write_text(yaml.safe_dump(of_tokens(HF_GPT)))
    assert [one for one in findings(path, device, mode) if one[0] != "advice"] == []
