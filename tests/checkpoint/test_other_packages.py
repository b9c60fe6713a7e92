"""Weights between devrun's models and those of the packages that are installed: the
same image gives the same logits."""

import logging

import pytest
import torch

from devrun.checkpoint import load_checkpoint, load_state_dict, save_checkpoint
from devrun.models import ResNet, VisionTransformer
from tests.support.packages import let_torchvision_load

pytestmark = pytest.mark.filterwarnings("ignore")  # of the other packages' code
SIZES = {"img_size": 32, "patch_size": 8, "embed_dim": 24, "depth": 2, "num_heads": 3}
WIDE = {**SIZES, "mlp_ratio": 2.0, "num_classes": 5}


def ours_vit(**changes):
    return VisionTransformer(**{**WIDE, **changes})


def ours_resnet(depth=18):
    return ResNet(depth, num_classes=5)


def mmcls_resnet():
    neck = {"type": "GlobalAveragePooling"}
    return mmcls_of({"type": "ResNet", "depth": 18}, 512, neck)


def mmcls_vit(img_size=32):
    arch = {"embed_dims": 24, "num_layers": 2, "num_heads": 3}
    return mmcls().build_classifier(
        {
            "type": "ImageClassifier",
            "backbone": {
                "type": "VisionTransformer",
                "arch": {**arch, "feedforward_channels": 48},
                "img_size": img_size,
                "patch_size": 8,
            },
            "head": {
                "type": "VisionTransformerClsHead",
                "num_classes": 5,
                "in_channels": 24,
            },
        }
    )


def mmcls():
    torchvision()
    pytest.importorskip("mmcls", reason="mmcls 0.25 and mmcv 1.7 are not installed")
    from mmcls import models

    return models


def torchvision():
    let_torchvision_load()
    return pytest.importorskip("torchvision")


def torchvision_resnet():
    return torchvision().models.resnet18(num_classes=5)


def torchvision_vit():
    return torchvision().models.VisionTransformer(
        image_size=32, patch_size=8, num_layers=2, num_heads=3, hidden_dim=24,
        mlp_dim=48, num_classes=5,
    )  # fmt: skip


def timm_resnet():
    torchvision()
    return pytest.importorskip("timm").create_model("resnet18", num_classes=5)


def timm_vit(**changes):
    torchvision()
    return pytest.importorskip("timm").models.VisionTransformer(**{**WIDE, **changes})


def mmcls_of(backbone, channels, neck=None):
    head = {"type": "LinearClsHead", "num_classes": 5, "in_channels": channels}
    return mmcls().build_classifier(
        {"type": "ImageClassifier", "backbone": backbone, "neck": neck, "head": head}
    )


def randomized(model, seed):
    """Values whose mixing up would show in the logits; statistics are positive."""
    stream = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for value in model.parameters():
            value.copy_(torch.randn(value.shape, generator=stream) * 0.1)
        for name, value in model.state_dict().items():
            if name.endswith(("running_mean", "running_var")):
                value.copy_(torch.rand(value.shape, generator=stream) + 0.5)
    return model.eval()


@torch.no_grad()
def logits(model):
    stream = torch.Generator().manual_seed(7)
    inputs = torch.randn((2, 3, 32, 32), generator=stream)
    if hasattr(model, "simple_test"):
        return model.simple_test(inputs, softmax=False, post_process=False)
    found = model(inputs)
    return found if isinstance(found, torch.Tensor) else found["logits"]


PAIRS = {
    "mmcls resnet": (mmcls_resnet, ours_resnet),
    "mmcls vit": (mmcls_vit, ours_vit),
    "torchvision resnet": (torchvision_resnet, ours_resnet),
    "torchvision vit": (torchvision_vit, ours_vit),
    "timm resnet": (timm_resnet, ours_resnet),
    "timm vit": (timm_vit, ours_vit),
    "timm vit in mmcls": (timm_vit, mmcls_vit),
}


@pytest.mark.parametrize("pair", PAIRS.values(), ids=PAIRS)
@pytest.mark.parametrize("back", [False, True], ids=["there", "back"])
def test_weights_of_one_give_its_logits_in_the_other(pair, back, tmp_path, caplog):
    first, second = (make() for make in (reversed(pair) if back else pair))
    randomized(first, 0), randomized(second, 1)
    save_checkpoint(first, tmp_path / "epoch_1.pth")
    with caplog.at_level(logging.INFO):
        load_checkpoint(second, tmp_path / "epoch_1.pth")
    assert "loaded all" in caplog.text
    assert torch.allclose(logits(first), logits(second), rtol=1e-4, atol=1e-5)
    assert logits(first).std() > 1e-3


def test_a_body_without_its_head_is_read_too(caplog):
    other = randomized(mmcls_vit(), 0)
    model, whole = randomized(ours_vit(), 1), randomized(ours_vit(), 2)
    load_state_dict(whole, other.state_dict())
    with caplog.at_level(logging.WARNING):
        load_state_dict(model, other.backbone.state_dict())
    assert "2 missing: head.weight, head.bias" in caplog.text
    ours = model.state_dict()
    assert all(
        torch.equal(ours[key], value)
        for key, value in whole.state_dict().items()
        if not key.startswith("head.")
    )


def test_torchvisions_own_files_have_other_names_than_its_code(caplog):
    other, model = randomized(torchvision_vit(), 0), randomized(ours_vit(), 1)
    published = {
        key.replace(".mlp.0.", ".mlp.linear_1.").replace(".mlp.3.", ".mlp.linear_2."): v
        for key, v in other.state_dict().items()
    }
    load_state_dict(model, published, strict=True)
    assert torch.allclose(logits(model), logits(other), rtol=1e-4, atol=1e-5)
