"""MMSegmentation 1.x on devrun's runner: one epoch and one evaluation of each model."""

import json
from pathlib import Path

import numpy as np
import pytest

from devrun.cli.main import main

pytestmark = [
    pytest.mark.usefixtures("mmseg2"),
    pytest.mark.filterwarnings("ignore"),  # of packages that are not maintained
]

NORM = "dict(type='BN')"
RESNET = (
    "dict(type='ResNetV1c', depth=18, base_channels=4, stem_channels=4, "
    "dilations=(1, 1, 2, 4), strides=(1, 2, 1, 1), norm_cfg=" + NORM + ")"
)
HEAD = (
    "in_channels=32, in_index=3, channels=8, num_classes=3, norm_cfg=" + NORM + ", "
    "loss_decode=dict(type='CrossEntropyLoss')"
)
MODELS = {
    "fcn": (RESNET, f"dict(type='FCNHead', num_convs=1, {HEAD})"),
    "pspnet": (RESNET, f"dict(type='PSPHead', pool_scales=(1, 2), {HEAD})"),
    "segformer": (
        "dict(type='MixVisionTransformer', embed_dims=8, num_stages=4, "
        "num_layers=[1, 1, 1, 1], num_heads=[1, 2, 4, 8], sr_ratios=[8, 4, 2, 1])",
        "dict(type='SegformerHead', in_channels=[8, 16, 32, 64], "
        "in_index=[0, 1, 2, 3], channels=8, num_classes=3, norm_cfg=" + NORM + ", "
        "loss_decode=dict(type='CrossEntropyLoss'))",
    ),
}
CONFIG = """
model = dict(
    type='EncoderDecoder', backbone={backbone}, decode_head={head},
    data_preprocessor=dict(
        type='SegDataPreProcessor', mean=[120.0] * 3, std=[60.0] * 3,
        bgr_to_rgb=True, size=(32, 32), pad_val=0, seg_pad_val=255),
    train_cfg=dict(), test_cfg=dict(mode='whole'))
loading = [dict(type='LoadImageFromFile'), dict(type='LoadAnnotations')]
common = dict(
    type='BaseSegDataset', data_root='made', img_suffix='.png',
    metainfo=dict(classes=('a', 'b', 'c')),
    data_prefix=dict(img_path='images', seg_map_path='labels'))
train_dataloader = dict(
    batch_size=2, num_workers=0, sampler=dict(type='InfiniteSampler', shuffle=True),
    dataset=dict(pipeline=[*loading, dict(type='RandomFlip', prob=0.5),
                           dict(type='PackSegInputs')], **common))
val_dataloader = dict(
    batch_size=1, num_workers=0, sampler=dict(type='DefaultSampler', shuffle=False),
    dataset=dict(pipeline=[*loading, dict(type='PackSegInputs')], **common))
val_evaluator = dict(type='IoUMetric', iou_metrics=['mIoU'])
optim_wrapper = dict(
    type='OptimWrapper', optimizer=dict(type='SGD', lr=0.01, momentum=0.9))
param_scheduler = [
    dict(type='PolyLR', eta_min=1e-4, power=0.9, begin=0, end=4, by_epoch=False)]
train_cfg = dict(type='IterBasedTrainLoop', max_iters=4, val_interval=2)
val_cfg = dict(type='ValLoop')
default_scope = 'mmseg'
default_hooks = dict(
    logger=dict(type='LoggerHook', interval=1, log_metric_by_epoch=False),
    param_scheduler=dict(type='ParamSchedulerHook'),
    checkpoint=dict(type='CheckpointHook', by_epoch=False, interval=4,
                    save_best='mIoU'),
    visualization=dict(type='SegVisualizationHook'))
randomness = dict(seed=1)
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with four small images and their maps, made up."""
    cv2 = pytest.importorskip("cv2")
    monkeypatch.chdir(tmp_path)
    draw = np.random.default_rng(0)
    for part, shape, high in (("images", (32, 32, 3), 256), ("labels", (32, 32), 3)):
        (tmp_path / "made" / part).mkdir(parents=True)
        for n in range(4):
            image = draw.integers(0, high, shape, dtype=np.uint8)
            cv2.imwrite(f"made/{part}/{n}.png", image)


@pytest.mark.parametrize("name", MODELS)
def test_it_trains_and_is_evaluated(folder, name):
    backbone, head = MODELS[name]
    Path("cfg.py").write_text(CONFIG.format(backbone=backbone, head=head))
    words = ("--device", "cpu", "--work-dir", "out", "--no-progress")
    assert main(["train", "cfg.py", *words]) == 0
    (log,) = Path("out").glob("*.log.json")
    found = [json.loads(line) for line in log.read_text().splitlines()]
    losses = [row["loss"] for row in found if row.get("mode") == "train"]
    results = [row for row in found if row.get("mode") == "val"]
    assert len(losses) == 4
    assert all(np.isfinite(losses))
    assert len(results) == 2
    assert {"aAcc", "mIoU", "mAcc"} <= set(results[0])
    (best,) = Path("out/checkpoints").glob("best_mIoU_*")
    assert best.is_dir()
