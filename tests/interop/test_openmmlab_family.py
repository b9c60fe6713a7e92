"""MMSegmentation, MMDetection and MMPose of MMCV 1.x: their configs, small, train."""

from __future__ import annotations

import json
import logging
import math
import sys

import pytest
import torch

from devrun import interop
from devrun.cli.main import main
from devrun.errors import UnsupportedFeatureError
from devrun.scopes import attach
from tests.support import openmmlab_family as family

pytestmark = pytest.mark.filterwarnings("ignore")  # packages no longer maintained

RESNET = "model = cfg['model']; model['backbone'].update(depth=18, base_channels=8)"
SEG = """
model = cfg['model']
if model['backbone']['type'] == 'ResNetV1c':
    model['backbone'].update(depth=18, base_channels=8, stem_channels=8)
for head in (model['decode_head'], model['auxiliary_head']):
    if head:
        head.update(channels=8, num_classes=3)
names = ['wall', 'building', 'sky']
for part in ('train', 'val', 'test'):
    cfg['data'][part]['classes'] = names
"""
D8 = SEG + (
    "model['decode_head']['in_channels'] = 64\n"
    "model['auxiliary_head']['in_channels'] = 32\n"
)
SEGMENTERS = {
    "fcn/fcn_r50-d8_512x512_80k_ade20k.py": D8,
    "pspnet/pspnet_r50-d8_512x512_80k_ade20k.py": D8,
    "deeplabv3plus/deeplabv3plus_r50-d8_512x512_80k_ade20k.py": D8
    + "model['decode_head'].update(c1_in_channels=8, c1_channels=4)",
    "upernet/upernet_r50_512x512_80k_ade20k.py": SEG
    + "model['decode_head']['in_channels'] = [8, 16, 32, 64]\n"
    "model['auxiliary_head']['in_channels'] = 32\n",
    "segformer/segformer_mit-b0_512x512_160k_ade20k.py": SEG.replace(
        "model['auxiliary_head']", "None"
    )
    + "model['backbone'].update(embed_dims=8, num_layers=[1] * 4)\n"
    "model['decode_head']['in_channels'] = [8, 16, 40, 64]\n",
    "unet/fcn_unet_s5-d16_128x128_40k_chase_db1.py": """
model = cfg['model']
model['backbone']['base_channels'] = 4
model['decode_head'].update(in_channels=4, channels=4)
model['auxiliary_head'].update(in_channels=8, channels=4)
model['test_cfg'].update(crop_size=(32, 32), stride=(16, 16))
cfg['data']['train']['times'] = 1
""",
}
FPN = RESNET + "; model['neck']['in_channels'] = [8, 16, 32, 64]"
ROI = FPN + (
    "; model['roi_head']['bbox_head']['fc_out_channels'] = 32"
    "; model['test_cfg']['rcnn']['score_thr'] = 0"
)
ANY = "; model['test_cfg']['score_thr'] = 0"  # else an untrained model finds nothing
DETECTORS = {
    "retinanet/retinanet_r50_fpn_1x_coco.py": FPN + ANY,
    "fcos/fcos_r50_caffe_fpn_gn-head_1x_coco.py": FPN + ANY,
    "atss/atss_r50_fpn_1x_coco.py": FPN + ANY,
    "yolox/yolox_tiny_8x8_300e_coco.py": """
model = cfg['model']
model['backbone'].update(widen_factor=0.125)
model['neck'].update(in_channels=[32, 64, 128], out_channels=32)
model['bbox_head'].update(in_channels=32, feat_channels=32)
model['random_size_range'] = (2, 2)
model['test_cfg']['score_thr'] = 0
del cfg['custom_hooks']
cfg['lr_config'] = dict(policy='CosineAnnealing', min_lr_ratio=0.05)
""",
    "detr/detr_r50_8x2_150e_coco.py": """
model = cfg['model']
model['backbone'].update(depth=18, base_channels=8)
head = model['bbox_head']
head.update(in_channels=64, num_query=10)
model['test_cfg']['max_per_img'] = 10
head['transformer']['encoder']['num_layers'] = 1
head['transformer']['decoder']['num_layers'] = 1
""",
    "faster_rcnn/faster_rcnn_r50_fpn_1x_coco.py": ROI,
    "mask_rcnn/mask_rcnn_r50_fpn_1x_coco.py": ROI,
}
DEFORMABLE = (
    FPN + "; model['backbone'].update("
    "dcn=dict(type='DCNv2', deform_groups=1, fallback_on_stride=False), "
    "stage_with_dcn=(False, False, False, True), depth=50); "
    "model['neck']['in_channels'] = [32, 64, 128, 256]"
)
POSE = """
cfg['runner'] = dict(type='EpochBasedRunner', max_epochs=cfg.pop('total_epochs'))
cfg['model']['backbone'].update(depth=18, base_channels=8)
cfg['model']['keypoint_head']['in_channels'] = 64
for part in ('train', 'val', 'test'):
    cfg['data'][part]['data_cfg'].update(
        image_size=[32, 32], heatmap_size=[8, 8], use_gt_bbox=True)
"""


@pytest.fixture(scope="module")
def segmentation(mmseg1, tmp_path_factory):
    folder = tmp_path_factory.mktemp("mmseg")
    family.make_segmentation(folder)
    return folder


@pytest.fixture(scope="module")
def detection(mmdet2, tmp_path_factory):
    attach("mmdet")
    folder = tmp_path_factory.mktemp("mmdet")
    family.make_coco(folder)
    return folder


@pytest.fixture(autouse=True)
def loggers(monkeypatch):
    """Theirs keep the stream of the test that came first."""
    monkeypatch.setattr(logging, "raiseExceptions", False)


@pytest.fixture
def run(tmp_path, capfd):
    """`run(config, device, *options)` -> (status, stderr, records of the log)."""

    def start(config, device="cpu", *options, flags=()):
        work = tmp_path / "work"
        words = ["train", config, "--device", device, "--work-dir", str(work)]
        words += ["--seed", "1", "--no-progress", "--overwrite", *flags]
        words += ["--emulate"] if device != "cpu" else []
        status = main([*words, "--cfg-options", *family.SHORT, *options])
        text = capfd.readouterr().err
        logs = sorted(work.glob("*.log.json"))
        lines = logs[-1].read_text().splitlines() if logs else []
        return status, text, [json.loads(line) for line in lines]

    return start


def one_update(found):
    """The results of one update and one evaluation."""
    status, text, records = found
    assert status == 0, text
    (train,) = [r for r in records if r.get("mode") == "train"]
    (val,) = [r for r in records if r.get("mode") == "val"]
    assert math.isfinite(train["loss"])
    return val


@pytest.mark.parametrize("name", SEGMENTERS)
def test_a_segmenter_trains_and_is_evaluated(segmentation, monkeypatch, run, name):
    monkeypatch.chdir(segmentation)
    config = family.shrunk("mmseg", name, segmentation, SEGMENTERS[name], 32)
    val = one_update(run(config, "cpu", "runner.max_iters=1"))
    assert {"aAcc", "mAcc"} < val.keys()
    assert 0 <= val.get("mIoU", val.get("mDice")) <= 1


@pytest.mark.parametrize("name", DETECTORS)
def test_a_detector_trains_and_is_evaluated(detection, monkeypatch, run, name):
    monkeypatch.chdir(detection)
    config = family.shrunk("mmdet", name, detection, DETECTORS[name])
    val = one_update(run(config, "cpu", "runner.max_epochs=1"))
    assert "bbox_mAP" in val


def test_a_deformable_backbone_trains(detection, monkeypatch, run):
    monkeypatch.chdir(detection)
    name = "retinanet/retinanet_r50_fpn_1x_coco.py"
    config = family.shrunk("mmdet", name, detection, DEFORMABLE)
    one_update(run(config, "cpu", "runner.max_epochs=1"))


@pytest.mark.slow
def test_a_detector_trains_on_gaudi(detection, monkeypatch, on_gaudi, tmp_path):
    monkeypatch.chdir(detection)
    name = "retinanet/retinanet_r50_fpn_1x_coco.py"
    config = family.shrunk("mmdet", name, detection, DETECTORS[name])
    options = [*family.SHORT, "runner.max_epochs=1"]
    on_gaudi(config, "--work-dir", tmp_path / "w", "--cfg-options", *options)
    (log,) = (tmp_path / "w").glob("*.log.json")
    assert "bbox_mAP" in log.read_text()


def test_a_policy_of_theirs_is_refused_by_name(detection, monkeypatch, run):
    monkeypatch.chdir(detection)
    name = "yolox/yolox_tiny_8x8_300e_coco.py"
    changes = DETECTORS[name].replace("cfg['lr_config']", "unread")
    config = family.shrunk("mmdet", name, detection, changes)
    status, text, _ = run(config)
    assert status == 2
    assert "YOLOX" in text.splitlines()[-1]


POSE_CONFIG = "body/2d_kpt_sview_rgb_img/topdown_heatmap/coco/res50_coco_256x192.py"


def test_mmpose_says_which_mmcv_it_takes(mmpose0, detection, monkeypatch, run):
    monkeypatch.chdir(detection)
    interop.attach.cache_clear()  # another test may have attached it
    for name in [name for name in sys.modules if name.split(".")[0] == "mmpose"]:
        monkeypatch.delitem(sys.modules, name)
    config = family.shrunk("mmpose", POSE_CONFIG, detection, POSE)
    status, text, _ = run(config)
    assert status == 2
    told = text.splitlines()[-1]
    assert "MMCV==1.7.2 is used but incompatible" in told
    assert "mmcv 1.7.0 fits" in told


def test_a_pose_model_trains(mmpose_without_checks, detection, monkeypatch, run):
    monkeypatch.chdir(detection)
    config = family.shrunk("mmpose", POSE_CONFIG, detection, POSE)
    flags = ("--no-validate",)
    status, text, records = run(config, "cpu", "runner.max_epochs=1", flags=flags)
    assert status == 0, text
    losses = [r["loss"] for r in records if r.get("mode") == "train"]
    assert len(losses) == 2
    assert all(map(math.isfinite, losses))


def test_an_operator_that_is_not_here_is_refused_by_name(mmdet2):
    attach("mmdet")
    import mmcv.ops

    with pytest.raises(UnsupportedFeatureError, match="softnms.*mmcv-full"):
        mmcv.ops.soft_nms(torch.rand(2, 4), torch.rand(2))
