"""Models, schedulers, metrics and hooks of MMEngine's packages on devrun's runner."""

import json
import os
import re
from pathlib import Path

import pytest
import torch

from devrun.checkpoint import read_checkpoint
from tests.interop.engine_runs import MARKS, MLP, classifier, command, rows, train

pytestmark = MARKS


SCHEDULERS = (
    "dict(type='LinearLR', start_factor=0.01, end=1, convert_to_iter_based=True), "
    "dict(type='CosineAnnealingLR', begin=1, end=4, T_max=3, eta_min=0.02), "
    "dict(type='ConstantLR', begin=4, end=6, factor=0.1)"
)


def test_a_resumed_run_goes_on_with_its_schedulers(folder):
    text = MLP + f"param_scheduler = [{SCHEDULERS}]"
    assert train(text) == 0
    whole = [row["lr"] for row in rows("train")]
    half = "out/checkpoints/step-00000012"
    assert train(text, "--resume-from", half, work="again") == 0
    rest = [row["lr"] for row in rows("train", "again")]
    assert rest == whole[12:]
    weights = [
        read_checkpoint(Path(work) / "checkpoints" / "step-00000024")["model"]
        for work in ("out", "again")
    ]
    for name, value in weights[0].items():
        assert torch.equal(value, weights[1][name]), name


def test_the_best_checkpoint_and_the_command_test(folder, capsys):
    assert train(classifier()) == 0
    (best,) = Path("out/checkpoints").glob("best_accuracy_top1_*")
    assert best.is_dir()
    capsys.readouterr()
    words = ("--device", "cpu", "--no-progress", "--out", "found.json")
    assert command("test", "cfg.py", "out", *words) == 0
    found = json.loads(Path("found.json").read_text())["results"]
    assert {"accuracy/top1", "accuracy/top5", "single-label/precision"} <= set(found)
    assert any(name.startswith("second/") for name in found)


def test_weights_are_initialised_once_and_before_they_are_loaded(folder, monkeypatch):
    from mmpretrain.models import ImageClassifier

    calls = []
    init = ImageClassifier.init_weights

    def counted(self):
        calls.append(self)
        init(self)

    monkeypatch.setattr(ImageClassifier, "init_weights", counted)
    assert train(classifier()) == 0
    assert len(calls) == 1
    saved = "out/checkpoints/step-00000010"
    off = ("optim_wrapper.optimizer.lr=0.0", "optim_wrapper.optimizer.weight_decay=0.0")
    words = ("--load-from", saved, "--cfg-options", *off, "train_cfg.max_epochs=2")
    assert train(classifier("resnet"), *words, work="more") == 0
    assert len(calls) == 2
    before = read_checkpoint(saved)["model"]
    after = read_checkpoint("more/checkpoints/step-00000010")["model"]
    name = "backbone.layer1.0.conv1.weight"
    assert torch.equal(before[name], after[name])


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("ResNet_CIFAR'", "ResNet_CIFA'", "did you mean 'ResNet_CIFAR'"),
        ("type='PackInputs'", "type='PackInput'", "did you mean 'PackInputs'"),
        ("val_evaluator = dict(type='Accuracy'", "val_evaluator = dict(type='Acuracy'",
         "did you mean 'Accuracy'"),
        ("type='LinearLR'", "type='LinerLR'", "LinearLR"),
        ("default_scope = 'mmpretrain'", "default_scope = 'mmpretran'", "mmpretrain"),
        ("'GlobalAveragePooling'", "'mmdet.FPN'", "mmdet"),
    ],
)  # fmt: skip
def test_a_wrong_name_is_one_line(folder, capsys, old, new, words):
    text = classifier()
    assert old in text
    assert train(text.replace(old, new)) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert re.search(words, error)
    assert error.startswith("devrun: error: ")


HOSTILE = {
    "a dotted path for a part": (
        "type='GlobalAveragePooling'",
        "type='os.system', command='touch owned'",
    ),
    "a path of the package itself": (
        "type='GlobalAveragePooling'",
        "type='mmpretrain.utils.setup_env.os.system', command='touch owned'",
    ),
    "a scope of the config's own": (
        "type='GlobalAveragePooling'",
        "type='GlobalAveragePooling', _scope_='evil'",
    ),
    "a dotted path in a pipeline": (
        "[dict(type='PackInputs')]",
        "[dict(type='os.system', command='touch owned')]",
    ),
    "a scheduler by its path": ("type='LinearLR'", "type='os.system'"),
    "a metric by its path": (
        "val_evaluator = dict(type='Accuracy', topk=(1, 5))",
        "val_evaluator = dict(type='os.system', command='touch owned')",
    ),
    "a hook by its path": (
        "default_scope = 'mmpretrain'",
        "default_scope = 'mmpretrain'\n"
        "custom_hooks = [dict(type='os.system', command='touch owned')]",
    ),
    "an optimizer constructor by its path": (
        "    clip_grad=dict(max_norm=5.0))",
        "    constructor='os.system', clip_grad=dict(max_norm=5.0))",
    ),
    "a collate function by its path": (
        "train_dataloader = dict(",
        "train_dataloader = dict(collate_fn=dict(type='os.system'),",
    ),
    "a module beside the config": (
        "default_scope = 'mmpretrain'",
        "default_scope = 'mmpretrain'\ncustom_imports = dict(imports=['evil'])",
    ),
}


@pytest.mark.parametrize("change", HOSTILE.values(), ids=HOSTILE.keys())
def test_a_config_runs_nothing(folder, capsys, change):
    Path("evil").mkdir()
    Path("evil/__init__.py").write_text("open('owned', 'w')")
    Path("evil/registry.py").write_text("open('owned', 'w')")
    text = classifier()
    assert change[0] in text
    assert train(text.replace(*change, 1)) == 2
    assert not Path("owned").exists()
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith("devrun: error: ")


class Bomb:
    def __reduce__(self):
        return os.system, ("touch owned",)


def test_weights_with_code_in_them_run_nothing(folder):
    torch.save({"state_dict": {"a": Bomb()}}, "evil.pth")
    text = classifier().replace(
        "out_indices=(3, )",
        "out_indices=(3, ), init_cfg=dict(type='Pretrained', checkpoint='evil.pth')",
    )
    assert train(text) in (2, 3)
    assert not Path("owned").exists()
