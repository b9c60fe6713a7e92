"""Small runs of MMEngine-style configs, by devrun and by MMEngine's own runner."""

import json
import textwrap
from pathlib import Path

import pytest

from devrun.cli.main import main
from devrun.trust import granted

MARKS = [
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
