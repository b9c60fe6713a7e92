"""MMSegmentation and MMDetection of MMCV 1.x: their configs, small, train."""

from __future__ import annotations

import pytest
import torch

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


@pytest.mark.parametrize("name", SEGMENTERS)
def test_a_segmenter_trains_and_is_evaluated(segmentation, monkeypatch, train, name):
    monkeypatch.chdir(segmentation)
    config = family.shrunk("mmseg", name, segmentation, SEGMENTERS[name], 32)
    val = family.one_update(train(config, "cpu", "runner.max_iters=1"))
    assert {"aAcc", "mAcc"} < val.keys()
    assert 0 <= val.get("mIoU", val.get("mDice")) <= 1


@pytest.mark.parametrize("name", DETECTORS)
def test_a_detector_trains_and_is_evaluated(detection, monkeypatch, train, name):
    monkeypatch.chdir(detection)
    config = family.shrunk("mmdet", name, detection, DETECTORS[name])
    val = family.one_update(train(config, "cpu", "runner.max_epochs=1"))
    assert "bbox_mAP" in val


def test_a_deformable_backbone_trains(detection, monkeypatch, train):
    monkeypatch.chdir(detection)
    name = "retinanet/retinanet_r50_fpn_1x_coco.py"
    config = family.shrunk("mmdet", name, detection, DEFORMABLE)
    family.one_update(train(config, "cpu", "runner.max_epochs=1"))


def test_an_operator_that_is_not_here_is_refused_by_name(mmdet2):
    attach("mmdet")
    import mmcv.ops

    with pytest.raises(UnsupportedFeatureError, match="softnms.*mmcv-full"):
        mmcv.ops.soft_nms(torch.rand(2, 4), torch.rand(2))
