"""YOLOX of MMDetection 2.28 as it is shipped: hooks, policy, mosaic and mixup."""

from __future__ import annotations

import copy
import sys
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from devrun import EpochBasedRunner
from devrun.errors import ConfigError
from devrun.hooks.schedules.build import build_lr_hook
from devrun.interop.openmmlab.yolox import (
    ExpMomentumEMAHook,
    LinearMomentumEMAHook,
)
from devrun.scopes import within
from tests.support import openmmlab_family as family

pytestmark = pytest.mark.filterwarnings("ignore")  # a package no longer maintained

EPOCHS, LAST = 4, 2
SMALL = [
    *(f"data.train.pipeline.{n}.img_scale=(64,64)" for n in (0, 2, 5)),
    *("data.train.pipeline.1.border=(-32,-32)", "model.input_size=(64,64)"),
    *("data.val.pipeline.1.img_scale=(64,64)", "model.random_size_range=(2,3)"),
    *("model.backbone.widen_factor=0.125", "model.neck.in_channels=[32,64,128]"),
    *("model.neck.out_channels=32", "model.bbox_head.in_channels=32"),
    *("model.bbox_head.feat_channels=32", "model.test_cfg.score_thr=0"),
    *(f"custom_hooks.{n}.num_last_epochs={LAST}" for n in (0, 1)),
    *(f"lr_config.num_last_epochs={LAST}", "lr_config.warmup_iters=1"),
    *(f"runner.max_epochs={EPOCHS}", "data.samples_per_gpu=1"),
    *("checkpoint_config.interval=1", "evaluation.interval=10"),
    f"evaluation.dynamic_intervals=[({EPOCHS},1)]",
]


def reported(records, name):
    return [r[name] for r in records if r.get("mode") == "train" and name in r]


def test_a_shipped_config_trains_is_evaluated_and_resumes(
    detection, monkeypatch, train, tmp_path
):
    monkeypatch.chdir(detection)
    config = family.shipped("mmdet", "yolox/yolox_s_8x8_300e_coco.py")
    status, text, records = train(config, "cpu", *SMALL)
    assert status == 0, text
    assert [r["epoch"] for r in records if r.get("mode") == "val"] == [EPOCHS]
    assert "bbox_mAP" in records[-1]
    l1 = [r["epoch"] for r in records if r.get("mode") == "train" and "loss_l1" in r]
    assert sorted(set(l1)) == [EPOCHS - LAST, EPOCHS - LAST + 1, EPOCHS]
    rates = reported(records, "lr")
    assert rates == pytest.approx(rates_of_mmdet(2), rel=1e-3)
    saved = tmp_path / "work" / "checkpoints" / "step-00000006"
    flags = ("--resume-from", str(saved))
    status, text, again = train(config, "cpu", *SMALL, flags=flags, work="again")
    assert status == 0, text
    assert reported(again, "loss") == reported(records, "loss")[6:]


def rates_of_mmdet(batches):
    """The learning rates by MMDetection's own hook."""
    hook = sys.modules["mmdet.core"].YOLOXLrUpdaterHook(
        LAST,
        warmup="exp",
        by_epoch=False,
        warmup_ratio=1,
        warmup_iters=batches,
        min_lr_ratio=0.05,
    )
    hook.base_lr = [0.01]
    run = SimpleNamespace(data_loader=[0] * batches, max_iters=EPOCHS * batches)
    rates = []
    for run.iter in range(EPOCHS * batches):
        (warm,) = hook.get_warmup_lr(run.iter)
        rates.append(warm if run.iter < batches else hook.get_lr(run, 0.01))
    return rates


def test_the_policy_counts_updates(mmdet2):
    section = {"policy": "YOLOX", "num_last_epochs": 1, "min_lr": 0, "by_epoch": True}
    with within("mmdet"), pytest.raises(ConfigError, match="by_epoch.*must be False"):
        build_lr_hook(section)


class Regression(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Sequential(nn.BatchNorm1d(2), nn.Linear(2, 1))

    def train_step(self, batch, optimizer):
        loss = self.layer(batch).square().mean()
        return {"loss": loss, "log_vars": {}, "num_samples": len(batch)}


@pytest.mark.parametrize(("interval", "skip_buffers"), [(1, False), (2, True)])
@pytest.mark.parametrize(
    ("hook", "special"),
    [
        (ExpMomentumEMAHook, {"total_iter": 5}),
        (LinearMomentumEMAHook, {"warm_up": 200}),
    ],
)
def test_the_average_is_that_of_mmdetection(
    detection, tmp_path, hook, special, interval, skip_buffers
):
    options = {"momentum": 0.1, **special}
    options |= {"interval": interval, "skip_buffers": skip_buffers}
    torch.manual_seed(0)
    model = Regression()
    other = copy.deepcopy(model)
    data = torch.randn(12, 2)
    theirs = getattr(sys.modules["mmdet.core.hook.ema"], hook.__name__)(**options)
    theirs.before_run(SimpleNamespace(model=other))
    optimizer = torch.optim.SGD(other.parameters(), 0.1)
    for step, batch in enumerate(data.split(3)):
        optimizer.zero_grad()
        other.train_step(batch, None)["loss"].backward()
        optimizer.step()
        theirs.after_train_iter(SimpleNamespace(iter=step))
    theirs._swap_ema_parameters()

    ours = hook(**options)
    runner = EpochBasedRunner(
        model,
        optimizer=torch.optim.SGD(model.parameters(), 0.1),
        work_dir=str(tmp_path),
        max_epochs=1,
        device="cpu",
    )
    runner.register_training_hooks(None, {})
    runner.register_hook(ours)
    loader = torch.utils.data.DataLoader(data, batch_size=3)
    runner.run([loader], [("train", 1)])
    found = ours.averaged_model.state_dict()
    for name in ("layer.1.weight", "layer.1.bias", "layer.0.running_var"):
        if not (skip_buffers and "running" in name):
            torch.testing.assert_close(found[name], other.state_dict()[name])
