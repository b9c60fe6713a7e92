"""MMSegmentation of MMCV 1.x: its configs, small, train, on emulated devices too."""

import pytest
import torch

from devrun.errors import UnsupportedFeatureError
from devrun.scopes import attach
from tests.support import openmmlab_family as family

pytestmark = pytest.mark.filterwarnings("ignore")  # packages no longer maintained

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


@pytest.mark.parametrize("name", SEGMENTERS)
def test_a_segmenter_trains_and_is_evaluated(segmentation, monkeypatch, train, name):
    monkeypatch.chdir(segmentation)
    config = family.shrunk("mmseg", name, segmentation, SEGMENTERS[name], 32)
    val = family.one_update(train(config, "cpu", "runner.max_iters=1"))
    assert {"aAcc", "mAcc"} < val.keys()
    assert 0 <= val.get("mIoU", val.get("mDice")) <= 1


def test_an_operator_that_is_not_here_is_refused_by_name(mmseg1):
    attach("mmseg")
    import mmcv.ops

    with pytest.raises(UnsupportedFeatureError, match="nms.*mmcv-full"):
        mmcv.ops.nms(torch.rand(2, 4), torch.rand(2), 0.5)


FCN = "fcn/fcn_r50-d8_512x512_80k_ade20k.py"
SEGFORMER = "segformer/segformer_mit-b0_512x512_160k_ade20k.py"


@pytest.mark.parametrize("name", [FCN, SEGFORMER])
def test_a_segmenter_on_an_ipu_gives_what_the_cpu_does(
    segmentation, monkeypatch, train, name
):
    monkeypatch.chdir(segmentation)
    config = family.shrunk("mmseg", name, segmentation, SEGMENTERS[name], 32)
    options = ["runner.max_iters=1", "model.decode_head.dropout_ratio=0"]
    options += ["model.auxiliary_head.dropout_ratio=0"] if name == FCN else []
    options += ["model.backbone.drop_path_rate=0"] if name == SEGFORMER else []
    host = train(config, "cpu", *options, work="cpu")
    ipu = train(config, "ipu", *options, "ipu.evaluate_on=host", work="ipu")
    assert family.one_update(host)["aAcc"] == family.one_update(ipu)["aAcc"]
    ours, theirs = ipu[2][1], host[2][1]
    assert "decode.acc_seg" in ours
    for key in ("loss", "decode.acc_seg"):
        assert ours[key] == pytest.approx(theirs[key], rel=1e-3)
