"""Models of MMSegmentation and MMDetection on emulated devices that compile."""

from __future__ import annotations

import pytest

from tests.interop.test_openmmlab_family import DETECTORS, SEGMENTERS
from tests.support import openmmlab_family as family

pytestmark = pytest.mark.filterwarnings("ignore")  # packages no longer maintained

FCN = "fcn/fcn_r50-d8_512x512_80k_ade20k.py"
SEGFORMER = "segformer/segformer_mit-b0_512x512_160k_ade20k.py"
RETINANET = "retinanet/retinanet_r50_fpn_1x_coco.py"
FCOS = "fcos/fcos_r50_caffe_fpn_gn-head_1x_coco.py"


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


def test_what_an_ipu_cannot_evaluate_is_named(segmentation, monkeypatch, train):
    monkeypatch.chdir(segmentation)
    config = family.shrunk("mmseg", FCN, segmentation, SEGMENTERS[FCN], 32)
    status, text, _ = train(config, "ipu", "runner.max_iters=1")
    told = text.splitlines()[-1]
    assert status == 2
    assert "the operation aten::numpy at" in told
    assert "encoder_decoder.py" in told
    assert told.endswith("set ipu.evaluate_on: host")


@pytest.mark.parametrize(
    ("name", "operation"), [(RETINANET, "aten::bool"), (FCOS, "nonzero")]
)
def test_a_detector_is_refused_on_an_ipu_by_name(
    detection, monkeypatch, train, name, operation
):
    monkeypatch.chdir(detection)
    config = family.shrunk("mmdet", name, detection, DETECTORS[name])
    status, text, _ = train(config, "ipu", "runner.max_epochs=1")
    told = text.splitlines()[-1]
    assert status == 2
    assert f"cannot be compiled for the IPU: the operation {operation} at" in told


@pytest.mark.slow
@pytest.mark.parametrize("name", [RETINANET, FCOS])
def test_a_detector_trains_on_gaudi(detection, monkeypatch, on_gaudi, tmp_path, name):
    monkeypatch.chdir(detection)
    config = family.shrunk("mmdet", name, detection, DETECTORS[name])
    options = [*family.SHORT, "runner.max_epochs=1"]
    on_gaudi(config, "--work-dir", tmp_path / "w", "--cfg-options", *options)
    (log,) = (tmp_path / "w").glob("*.log.json")
    assert "bbox_mAP" in log.read_text()


@pytest.mark.slow
@pytest.mark.parametrize("name", [FCN, SEGFORMER])
def test_a_segmenter_trains_on_gaudi(
    segmentation, monkeypatch, on_gaudi, tmp_path, name
):
    monkeypatch.chdir(segmentation)
    config = family.shrunk("mmseg", name, segmentation, SEGMENTERS[name], 32)
    options = [*family.SHORT, "runner.max_iters=1"]
    on_gaudi(config, "--work-dir", tmp_path / "w", "--cfg-options", *options)
    (log,) = (tmp_path / "w").glob("*.log.json")
    assert "mIoU" in log.read_text()
