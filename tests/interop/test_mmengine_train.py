"""Models, schedulers, metrics and hooks of MMEngine's packages on devrun's runner."""

import json
import os
import pickle
import re
import textwrap
from pathlib import Path

import numpy as np
import pytest
import torch

from devrun.checkpoint import read_checkpoint
from devrun.cli.main import main
from devrun.config import Config
from devrun.errors import DevrunError
from devrun.hooks import Hook
from devrun.interop.mmengine.translate import translated
from devrun.models.build import build_model
from devrun.registry import HOOKS
from devrun.trust import granted

pytestmark = [
    pytest.mark.usefixtures("mmpretrain"),
    pytest.mark.filterwarnings("ignore"),  # of packages that are not maintained
]

MODELS = {
    "resnet": (
        "dict(type='ResNet_CIFAR', depth=18, base_channels=4, stem_channels=4, "
        "out_indices=(3, ))",
        "dict(type='LinearClsHead', num_classes=10, in_channels=32, topk=(1, 5))",
    ),
    "mobilenet": (
        "dict(type='MobileNetV2', widen_factor=0.1)",
        "dict(type='LinearClsHead', num_classes=10, in_channels=1280)",
    ),
    "vit": (
        "dict(type='VisionTransformer', img_size=32, patch_size=8, arch=dict("
        "embed_dims=16, num_layers=2, num_heads=2, feedforward_channels=32))",
        "dict(type='VisionTransformerClsHead', num_classes=10, in_channels=16)",
    ),
    "convnext": (
        "dict(type='ConvNeXt', arch=dict(depths=[1, 1, 1, 1], "
        "channels=[4, 8, 12, 16]))",
        "dict(type='LinearClsHead', num_classes=10, in_channels=16)",
    ),
}
CONFIG = """
model = dict(type='ImageClassifier', backbone={backbone}, neck={neck}, head={head})
data_preprocessor = dict(
    num_classes=10, mean=[125.0, 123.0, 114.0], std=[51.0, 50.0, 51.0], to_rgb=False)
pipeline = [dict(type='PackInputs')]
train_dataloader = dict(
    batch_size=8, num_workers=0,
    dataset=dict(type='CIFAR10', data_root='data', split='train', pipeline=pipeline),
    sampler=dict(type='DefaultSampler', shuffle=False))
val_dataloader = dict(
    batch_size=8, num_workers=0,
    dataset=dict(type='CIFAR10', data_root='data', split='test', pipeline=pipeline),
    sampler=dict(type='DefaultSampler', shuffle=False))
val_evaluator = dict(type='Accuracy', topk=(1, 5))
test_dataloader = val_dataloader
test_evaluator = [
    val_evaluator, dict(type='SingleLabelMetric'),
    dict(type='SingleLabelMetric', prefix='second', average=None)]
optim_wrapper = dict(
    optimizer=dict(type='AdamW', lr=0.01, weight_decay=0.05),
    paramwise_cfg=dict(norm_decay_mult=0.0, flat_decay_mult=0.0,
                       custom_keys=dict(head=dict(lr_mult=2.0, fix_lr=True))),
    clip_grad=dict(max_norm=5.0))
param_scheduler = [
    dict(type='LinearLR', start_factor=0.1, by_epoch=True, end=1,
         convert_to_iter_based=True),
    dict(type='CosineAnnealingLR', eta_min=1e-4, by_epoch=True, begin=1)]
train_cfg = dict(by_epoch=True, max_epochs=2)
val_cfg = dict()
test_cfg = dict()
default_scope = 'mmpretrain'
default_hooks = dict(
    logger=dict(type='LoggerHook', interval=1),
    checkpoint=dict(type='CheckpointHook', interval=1, save_best='auto'))
randomness = dict(seed=3)
"""
MLP = """
model = dict(type='devrun.MLP', in_features=16, hidden=[8], num_classes=4)
loss = dict(type='CrossEntropyLoss')
train_dataloader = dict(
    batch_size=8, num_workers=0, collate_fn=dict(type='default_collate'),
    dataset=dict(type='devrun.SyntheticClassification', num_samples=32),
    sampler=dict(type='DefaultSampler', shuffle=True))
optim_wrapper = dict(optimizer=dict(type='SGD', lr=0.1, momentum=0.9))
train_cfg = dict(by_epoch=True, max_epochs=6)
default_hooks = dict(
    logger=dict(type='LoggerHook', interval=1),
    checkpoint=dict(type='CheckpointHook', interval=3))
randomness = dict(seed=1)
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with CIFAR-10's files, made up and small."""
    monkeypatch.chdir(tmp_path)
    place = tmp_path / "data" / "cifar-10-batches-py"
    place.mkdir(parents=True)
    draw = np.random.default_rng(0)
    for name in [*(f"data_batch_{n}" for n in range(1, 6)), "test_batch"]:
        pixels = draw.integers(0, 256, (8, 3072), dtype=np.uint8)
        labels = draw.integers(0, 10, 8).tolist()
        (place / name).write_bytes(pickle.dumps({"data": pixels, "labels": labels}))
    names = {"label_names": [f"class {n}" for n in range(10)]}
    (place / "batches.meta").write_bytes(pickle.dumps(names))
    return tmp_path


def classifier(name="resnet", text=CONFIG):
    backbone, head = MODELS[name]
    pooled = name in ("resnet", "mobilenet")
    neck = "dict(type='GlobalAveragePooling')" if pooled else "None"
    return text.format(backbone=backbone, head=head, neck=neck)


def command(*words):
    try:
        return main([str(word) for word in words])
    except SystemExit as stop:
        return stop.code


def train(text, *words, work="out"):
    Path("cfg.py").write_text(textwrap.dedent(text))
    return command(
        "train",
        "cfg.py",
        "--device",
        "cpu",
        "--work-dir",
        work,
        "--no-progress",
        *words,
    )


def rows(mode, work="out"):
    lines = [p.read_text().splitlines() for p in sorted(Path(work).glob("*.log.json"))]
    found = [json.loads(line) for part in lines for line in part]
    return [row for row in found if row.get("mode") == mode]


def by_mmengine(text):
    """(losses, learning rates, results) of MMEngine's own runner."""
    from mmengine.config import Config as Theirs
    from mmengine.hooks import Hook
    from mmengine.runner import Runner

    losses, rates, results = [], [], []

    class Note(Hook):
        def before_train_iter(self, runner, batch_idx, data_batch=None):
            rates.append(runner.optim_wrapper.param_groups[0]["lr"])

        def after_train_iter(self, runner, batch_idx, data_batch=None, outputs=None):
            losses.append(float(outputs["loss"]))

        def after_val_epoch(self, runner, metrics=None):
            results.append(dict(metrics))

    Path("theirs.py").write_text(text)
    with granted(everything=True):  # its Config runs the file
        config = Theirs.fromfile("theirs.py")
        config.work_dir = "theirs"
        runner = Runner.from_cfg(config)
        runner.register_hook(Note())
        runner.train()
    return losses, rates, results


@pytest.mark.parametrize("name", MODELS)
def test_losses_rates_and_results_are_those_of_mmengines_own_runner(folder, name):
    text = classifier(name)
    assert train(text) == 0
    losses, rates, results = by_mmengine(text)
    assert len(losses) == 10
    ours = rows("train")
    assert [row["loss"] for row in ours] == pytest.approx(losses, rel=1e-5)
    assert [row["lr"] for row in ours] == pytest.approx(rates, rel=1e-12)
    for mine, theirs in zip(rows("val"), results, strict=True):
        assert theirs
        for key, value in theirs.items():
            assert mine[key] == pytest.approx(value)


def test_an_ipu_compiles_it_and_has_the_same_losses(folder):
    text = classifier()
    assert train(text) == 0
    Path("cfg.py").write_text(text)
    words = ("--device", "ipu", "--emulate", "--work-dir", "ipu", "--no-progress")
    assert command("train", "cfg.py", *words) == 0
    for mode, key in (("train", "loss"), ("val", "accuracy/top5")):
        cpu, ipu = ([row[key] for row in rows(mode, work)] for work in ("out", "ipu"))
        assert cpu == pytest.approx(ipu, rel=1e-4)


SCHEDULES = {
    "multi-step": "dict(type='MultiStepLR', milestones=[2, 4], gamma=0.1)",
    "step": "dict(type='StepLR', step_size=2, gamma=0.5)",
    "cosine": "dict(type='CosineAnnealingLR', T_max=5, eta_min=0.01)",
    "cosine, by iteration": (
        "dict(type='CosineAnnealingLR', T_max=20, by_epoch=False, begin=3, end=20)"
    ),
    "exponential": "dict(type='ExponentialLR', gamma=0.9)",
    "polynomial": "dict(type='PolyLR', power=0.9, eta_min=1e-4, by_epoch=False)",
    "constant": "dict(type='ConstantLR', factor=0.1, by_epoch=False, end=7)",
    "one cycle": (
        "dict(type='OneCycleLR', eta_max=0.2, total_steps=24, by_epoch=False)"
    ),
    "restarts": (
        "dict(type='CosineRestartLR', periods=[2, 4], restart_weights=[1, 0.5], "
        "eta_min=0.001)"
    ),
    "warm-up, cosine": (
        "dict(type='LinearLR', start_factor=0.01, end=2, convert_to_iter_based=True), "
        "dict(type='CosineAnnealingLR', begin=2, end=6, convert_to_iter_based=True)"
    ),
    "warm-up, cosine, constant": (
        "dict(type='LinearLR', start_factor=0.01, end=1, convert_to_iter_based=True), "
        "dict(type='CosineAnnealingLR', begin=1, end=4, T_max=3, eta_min=0.02), "
        "dict(type='ConstantLR', begin=4, end=6, factor=0.1)"
    ),
    "warm-up over a decay": (
        "dict(type='LinearLR', start_factor=0.1, by_epoch=False, end=10), "
        "dict(type='MultiStepLR', milestones=[1, 3])"
    ),
    "constant, polynomial": (
        "dict(type='ConstantLR', factor=0.1, by_epoch=False, end=5), "
        "dict(type='PolyLR', eta_min=0.001, by_epoch=False, begin=5)"
    ),
}


RATES = []


@HOOKS.register_module(force=True)
class NoteRates(Hook):
    def after_train_iter(self, runner):
        RATES.append(runner.optimizer.param_groups[0]["lr"])


def expected_rates(schedule, epochs=6, length=4):
    """By MMEngine's classes, stepped as its own hook steps them."""
    from mmengine.registry import PARAM_SCHEDULERS

    optimizer = torch.optim.SGD(
        [torch.nn.Parameter(torch.zeros(1))], lr=0.1, momentum=0.9
    )
    built = []
    for section in Config.fromstring(f"parts = [{schedule}]", ".py").parts:
        section = section.to_dict()
        in_epochs = section.get("by_epoch", True)
        section.setdefault("end", epochs if in_epochs else epochs * length)
        given = {"optimizer": optimizer, "epoch_length": length}
        built.append(PARAM_SCHEDULERS.build(section, default_args=given))
    rates = []
    for _ in range(epochs):
        for _ in range(length):
            rates.append(optimizer.param_groups[0]["lr"])
            optimizer.step()
            for one in built:
                if not one.by_epoch:
                    one.step()
        for one in built:
            if one.by_epoch:
                one.step()
    return rates


@pytest.mark.parametrize("schedule", SCHEDULES.values(), ids=SCHEDULES.keys())
def test_the_rate_of_every_update(folder, schedule):
    RATES.clear()
    noted = "custom_hooks = [dict(type='devrun.NoteRates')]\n"
    assert train(MLP + noted + f"param_scheduler = [{schedule}]") == 0
    wanted = expected_rates(schedule)
    assert len(set(wanted)) > 1
    assert RATES == pytest.approx(wanted, rel=1e-12)


def test_a_resumed_run_goes_on_with_its_schedulers(folder):
    text = MLP + f"param_scheduler = [{SCHEDULES['warm-up, cosine, constant']}]"
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


def test_init_cfg_of_a_missing_file_is_refused(folder, capsys):
    text = classifier().replace(
        "out_indices=(3, )",
        "out_indices=(3, ), init_cfg=dict(type='Pretrained', checkpoint='no.pth')",
    )
    assert train(text) in (2, 3)
    assert "no.pth" in capsys.readouterr().err.splitlines()[-1]


def test_their_hooks_and_optimizers(folder):
    text = classifier("vit").replace(
        "type='AdamW', lr=0.01", "type='Lamb', lr=0.01"
    ) + (
        "custom_hooks = [\n"
        "  dict(type='EMAHook', momentum=0.5, priority='ABOVE_NORMAL'),\n"
        "  dict(type='SimSiamHook', fix_pred_lr=True, lr=0.5)]\n"
    )
    assert train(text) == 0
    hooks = Path(next(Path("out").glob("*.log"))).read_text()
    assert "EMAHook" in hooks
    assert "SimSiamHook" in hooks


def test_a_hook_that_needs_more_of_the_runner_is_refused_by_name(folder, capsys):
    text = classifier() + "custom_hooks = [dict(type='PrepareProtoBeforeValLoopHook')]"
    assert train(text) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert "PrepareProtoBeforeValLoopHook takes part in before_val" in error


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
    "text that is evaluated as a dtype": (
        "[dict(type='PackInputs')]",
        "[dict(type='torchvision/ConvertImageDtype', "
        'dtype=\'float32 if __import__("os").system("touch owned") else 0\')]',
    ),
    "an attribute of albumentations": (
        "[dict(type='PackInputs')]",
        "[dict(type='Albumentations', transforms=[dict(type='Lambda')])]",
    ),
    "a storage that imports": (
        "split='train'",
        "split='train', backend_args=dict(backend='memcached', server_list_cfg='a', "
        "client_cfg='b', sys_path='.')",
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


def test_a_pickle_among_the_data_runs_nothing(folder):
    place = Path("data/cifar-10-batches-py/data_batch_1")
    place.write_bytes(pickle.dumps({"data": Bomb(), "labels": [0], "label_names": []}))
    assert train(classifier()) == 4
    assert not Path("owned").exists()


def test_weights_with_code_in_them_run_nothing(folder):
    torch.save({"state_dict": {"a": Bomb()}}, "evil.pth")
    text = classifier().replace(
        "out_indices=(3, )",
        "out_indices=(3, ), init_cfg=dict(type='Pretrained', checkpoint='evil.pth')",
    )
    assert train(text) in (2, 3)
    assert not Path("owned").exists()


def test_a_lazy_config_needs_trust_and_then_trains(folder, capsys):
    Path("base.py").write_text(
        "from mmpretrain.datasets import CIFAR10, PackInputs\n"
        "from mmpretrain.evaluation import Accuracy\n"
        "from mmengine.dataset import DefaultSampler\n"
        "train_dataloader = dict(\n"
        "    batch_size=8, num_workers=0,\n"
        "    dataset=dict(type=CIFAR10, data_root='data', split='train',\n"
        "                 pipeline=[dict(type=PackInputs)]),\n"
        "    sampler=dict(type=DefaultSampler, shuffle=True))\n"
    )
    backbone, head = (
        re.sub(r"type='(\w+)'", r"type=\1", part) for part in MODELS["resnet"]
    )
    lazy = (
        "from mmengine.config import read_base\n"
        "from torch.optim import SGD\n"
        "from mmengine.optim import OptimWrapper, MultiStepLR\n"
        "from mmengine.hooks import CheckpointHook\n"
        "from mmpretrain.models import (GlobalAveragePooling, ImageClassifier,\n"
        "    LinearClsHead, ResNet_CIFAR)\n"
        "with read_base():\n"
        "    from .base import *\n"
        "model = dict(type=ImageClassifier, neck=dict(type=GlobalAveragePooling),\n"
        f"    backbone={backbone}, head={head})\n"
        "optim_wrapper = dict(type=OptimWrapper, optimizer=dict(type=SGD, lr=0.1))\n"
        "param_scheduler = dict(type=MultiStepLR, milestones=[1])\n"
        "train_cfg = dict(by_epoch=True, max_epochs=1)\n"
        "default_hooks = dict(checkpoint=dict(type=CheckpointHook, interval=1))\n"
    )
    assert train(lazy) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert "--trust-config" in error
    assert train(lazy, "--trust-config") == 0
    assert command("convert", "cfg.py", "--trust-config", "-o", "plain.yaml") == 0
    plain = Config.fromfile("plain.yaml")
    assert plain.model.type.endswith("ImageClassifier")
    assert plain.data.train_dataloader.shuffle is True


def test_the_model_of_a_translated_config_is_theirs(folder):
    Path("cfg.py").write_text(classifier("vit"))
    made = translated(Config.fromfile("cfg.py"))
    model = build_model(made.model)
    assert type(model).__module__.startswith("mmpretrain.")
    with pytest.raises(DevrunError, match="did you mean 'backbone'"):
        build_model({**made.model, "bakbone": 1})
