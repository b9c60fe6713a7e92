"""MMPose 0.29 on MMCV 1.7.2: its own config of a top-down model, as it is shipped."""

from __future__ import annotations

import sys

import pytest

from tests.support import openmmlab_family as family

pytestmark = pytest.mark.filterwarnings("ignore")  # a package no longer maintained

TOPDOWN = "body/2d_kpt_sview_rgb_img/topdown_heatmap/coco"
CONFIG = f"{TOPDOWN}/res50_coco_256x192.py"
HRNET = f"{TOPDOWN}/hrnet_w32_coco_256x192.py"
SMALL = [
    "model.pretrained=None",
    "data.val.data_cfg.use_gt_bbox=True",
    *(
        f"data.{part}.data_cfg.{key}"
        for part in ("train", "val")
        for key in ("image_size=[64,64]", "heatmap_size=[16,16]")
    ),
]
THIN = [
    *("model.backbone.depth=18", "model.backbone.base_channels=8"),
    *("model.keypoint_head.in_channels=64", "model.keypoint_head.num_deconv_layers=3"),
]
STILL = [  # nothing random in the pipeline, and the same people in the evaluation
    *("data.train.pipeline.2.prob=0", "data.train.pipeline.3.flip_prob=0"),
    "data.train.pipeline.4.prob_half_body=0",
    *("data.train.pipeline.5.rot_factor=0", "data.train.pipeline.5.scale_factor=0"),
    "data.val.ann_file=data/coco/annotations/person_keypoints_train2017.json",
    "data.val.img_prefix=data/coco/train2017/",
    "model.test_cfg.flip_test=False",
]


@pytest.mark.parametrize("flags", [(), ("--trust-config",)])
def test_a_shipped_config_trains_and_is_evaluated(poses, monkeypatch, train, flags):
    monkeypatch.chdir(poses)
    config = family.shipped("mmpose", CONFIG)
    options = [*SMALL, *THIN, "total_epochs=1", "data.samples_per_gpu=4"]
    val = family.one_update(train(config, "cpu", *options, flags=flags))
    assert {"AP", "AP .5", "AR"} < val.keys()
    assert sys.modules["mmcv"].__version__.startswith("1.7.")
    assert sys.modules["mmcv"].__version__ != "1.7.0"  # changed for its import only


@pytest.mark.slow
def test_a_model_that_has_learnt_its_people_finds_them(poses, monkeypatch, train):
    monkeypatch.chdir(poses)
    config = family.shipped("mmpose", CONFIG)
    options = [*SMALL, *THIN, *STILL, "total_epochs=100", "optimizer.lr=0.005"]
    options += ["lr_config.warmup=None", "evaluation.interval=100"]
    options += ["data.samples_per_gpu=4", "data.val_dataloader.samples_per_gpu=3"]
    status, text, records = train(config, "cpu", *options)
    assert status == 0, text
    assert records[-1]["AP .5"] > 0.5


def test_hrnet_trains_and_is_evaluated(poses, monkeypatch, train):
    monkeypatch.chdir(poses)
    config = family.shipped("mmpose", HRNET)
    stages = [
        f"model.backbone.extra.stage{n}.num_{key}={[size] * (n if n > 1 else 1)}"
        for n in (1, 2, 3, 4)
        for key, size in (("blocks", 1), ("channels", 8))
    ]
    options = [*SMALL, *stages, "model.keypoint_head.in_channels=8", "total_epochs=1"]
    val = family.one_update(train(config, "cpu", *options, "data.samples_per_gpu=4"))
    assert "AP" in val


def test_a_pose_model_trains_on_an_ipu_and_is_evaluated_on_the_host(
    poses, monkeypatch, train
):
    monkeypatch.chdir(poses)
    config = family.shipped("mmpose", CONFIG)
    options = [*SMALL, *THIN, *STILL, "total_epochs=1", "data.samples_per_gpu=4"]
    host = train(config, "cpu", *options, work="cpu")
    ipu = train(config, "ipu", *options, "ipu.evaluate_on=host", work="ipu")
    assert family.one_update(host)["AP"] == family.one_update(ipu)["AP"]
    assert ipu[2][1]["loss"] == pytest.approx(host[2][1]["loss"], rel=1e-3)
    status, text, _ = train(config, "ipu", *options, work="again")
    told = text.splitlines()[-1]
    assert status == 2
    assert "the operation aten::numpy at" in told
    assert told.endswith("set ipu.evaluate_on: host")


@pytest.mark.slow
def test_a_pose_model_trains_on_gaudi(poses, monkeypatch, on_gaudi, tmp_path):
    monkeypatch.chdir(poses)
    options = [*family.SHORT, *SMALL, *THIN, "total_epochs=1"]
    config = family.shipped("mmpose", CONFIG)
    on_gaudi(config, "--work-dir", tmp_path / "w", "--cfg-options", *options)
    (log,) = (tmp_path / "w").glob("*.log.json")
    assert '"AP"' in log.read_text()
