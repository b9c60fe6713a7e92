"""Weights between devrun's models and those of the packages that are installed: the
same image gives the same logits."""

from __future__ import annotations

import logging

import pytest
import torch
from torch import nn

from devrun.checkpoint import load_checkpoint, load_state_dict, save_checkpoint
from devrun.checkpoint.keymap import relaid
from devrun.checkpoint.mmcv_format import write_mmcv_checkpoint
from devrun.models import GPT, ResNet, VisionTransformer
from tests.registry.scanning import let_torchvision_load

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


def mmcls_resnet_d():
    return mmcls_of(
        {"type": "ResNetV1d", "depth": 50}, 2048, {"type": "GlobalAveragePooling"}
    )


def timm_resnet_d():
    torchvision()
    return pytest.importorskip("timm").create_model("resnet50d", num_classes=5)


def mmcls_convnext():
    arch = {"depths": [1, 2, 1, 1], "channels": [8, 16, 24, 32]}
    return mmcls_of({"type": "ConvNeXt", "arch": arch, "drop_path_rate": 0.0}, 32)


def timm_convnext():
    torchvision()
    models = pytest.importorskip("timm").models
    return models.ConvNeXt(depths=(1, 2, 1, 1), dims=(8, 16, 24, 32), num_classes=5)


def mmcls_mixer():
    arch = {"embed_dims": 24, "num_layers": 2, "tokens_mlp_dims": 12}
    arch["channels_mlp_dims"] = 96
    backbone = {"type": "MlpMixer", "arch": arch, "img_size": 32, "patch_size": 8}
    return mmcls_of(backbone, 24, {"type": "GlobalAveragePooling", "dim": 1})


def timm_mixer():
    torchvision()
    models = pytest.importorskip("timm").models.mlp_mixer
    sizes = {"img_size": 32, "patch_size": 8, "num_blocks": 2, "embed_dim": 24}
    return models.MlpMixer(num_classes=5, **sizes)


def of(package, name, **options):
    """A model of torchvision or timm, by its name."""

    def build():
        torchvision()
        library = pytest.importorskip(package)
        make = getattr(library, "create_model", None) or library.models.get_model
        return sized(make(name, num_classes=5, **options))

    return build


def sized(model):
    """With the size of the images that it takes, where that is not 32."""
    kind = str(type(getattr(model, "backbone", model)))
    model.size = 224 if "VGG" in kind else 64 if "Swin" in kind else 32
    return model


def mmcls_vgg(depth, norm=None):
    backbone = {"type": "VGG", "depth": depth, "norm_cfg": norm, "num_classes": 5}
    head = {"type": "ClsHead"}
    classifier = {"type": "ImageClassifier", "backbone": backbone, "head": head}
    return lambda: sized(mmcls().build_classifier(classifier))


def mmcls_mobilenet():
    neck = {"type": "GlobalAveragePooling"}
    return mmcls_of({"type": "MobileNetV2"}, 1280, neck)


def mmcls_mobilenet_v3(arch, widths):
    head = {
        "type": "StackedLinearClsHead",
        "num_classes": 5,
        "in_channels": widths[0],
        "mid_channels": widths[1:],
        "act_cfg": {"type": "HSwish"},
    }
    classifier = {
        "type": "ImageClassifier",
        "backbone": {"type": "MobileNetV3", "arch": arch},
        "neck": {"type": "GlobalAveragePooling"},
        "head": head,
    }
    return lambda: mmcls().build_classifier(classifier)


SWIN = {"depths": [1, 1, 2, 1], "num_heads": [1, 2, 4, 8]}


def mmcls_swin():
    arch = {"embed_dims": 8, **SWIN}
    backbone = {"type": "SwinTransformer", "arch": arch, "img_size": 64}
    backbone["stage_cfgs"] = {"block_cfgs": {"window_size": 2}}
    return sized(mmcls_of(backbone, 64, {"type": "GlobalAveragePooling"}))


def timm_swin():
    torchvision()
    kind = pytest.importorskip("timm").models.SwinTransformer
    return sized(kind(img_size=64, embed_dim=8, window_size=2, num_classes=5, **SWIN))


def torchvision_swin():
    kind = torchvision().models.SwinTransformer
    return sized(kind([4, 4], 8, window_size=[2, 2], num_classes=5, **SWIN))


def torchvision_convnext():
    setting = torchvision().models.convnext.CNBlockConfig
    depths, widths = (1, 2, 1, 1), (8, 16, 24, 32, None)
    sizes = zip(widths, widths[1:], depths, strict=False)
    return torchvision().models.ConvNeXt([setting(*s) for s in sizes], num_classes=5)


def hub_convnext():
    transformers = pytest.importorskip("transformers")
    return transformers.ConvNextForImageClassification(
        transformers.ConvNextConfig(
            depths=[1, 2, 1, 1], hidden_sizes=[8, 16, 24, 32], num_labels=5
        )
    )


def hub_resnet(kind="basic"):
    transformers = pytest.importorskip("transformers")
    widths = [width * (4 if kind == "bottleneck" else 1) for width in (8, 16, 32, 64)]
    return transformers.ResNetForImageClassification(
        transformers.ResNetConfig(
            depths=[1, 2, 1, 1], hidden_sizes=widths, layer_type=kind,
            embedding_size=8, num_labels=5,
        )
    )  # fmt: skip


def small_resnet(bottleneck=False):
    return ResNet(
        stage_blocks=(1, 2, 1, 1), base_channels=8, bottleneck=bottleneck, num_classes=5
    )


def hub_vit():
    transformers = pytest.importorskip("transformers")
    return transformers.ViTForImageClassification(
        transformers.ViTConfig(
            image_size=32, patch_size=8, hidden_size=24, num_hidden_layers=2,
            num_attention_heads=3, intermediate_size=48, num_labels=5,
        )
    )  # fmt: skip


def hub_gpt():
    transformers = pytest.importorskip("transformers")
    config = {
        "vocab_size": 50,
        "n_positions": 16,
        "n_embd": 8,
        "n_layer": 2,
        "n_head": 2,
    }
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(**config))


def ours_gpt():
    return GPT(vocab_size=50, block_size=16, n_embd=8, n_layer=2, n_head=2)


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
    if isinstance(model, GPT) or "GPT2" in type(model).__name__:
        inputs = torch.randint(50, (2, 9), generator=stream)
    else:
        size = getattr(model, "size", 32)
        inputs = torch.randn((2, 3, size, size), generator=stream)
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
    "transformers vit": (hub_vit, ours_vit),
    "transformers gpt2": (hub_gpt, ours_gpt),
    "torchvision resnet in mmcls": (torchvision_resnet, mmcls_resnet),
    "torchvision vit in mmcls": (torchvision_vit, mmcls_vit),
    "timm vit in mmcls": (timm_vit, mmcls_vit),
    "timm resnet-d in mmcls": (timm_resnet_d, mmcls_resnet_d),
    "timm convnext in mmcls": (timm_convnext, mmcls_convnext),
    "timm mixer in mmcls": (timm_mixer, mmcls_mixer),
    "transformers resnet": (hub_resnet, small_resnet),
    "transformers bottlenecks": (
        lambda: hub_resnet("bottleneck"),
        lambda: small_resnet(bottleneck=True),
    ),
    "torchvision convnext in timm": (torchvision_convnext, timm_convnext),
    "transformers convnext in timm": (hub_convnext, timm_convnext),
    "torchvision mobilenet in mmcls": (
        of("torchvision", "mobilenet_v2"),
        mmcls_mobilenet,
    ),
    "timm mobilenet in torchvision": (
        of("timm", "mobilenetv2_100"),
        of("torchvision", "mobilenet_v2"),
    ),
    "timm efficientnet in torchvision": (
        of("timm", "efficientnet_b0"),
        of("torchvision", "efficientnet_b0"),
    ),
    "timm efficientnet v2 s in torchvision": (
        of("timm", "efficientnetv2_s", bn_eps=1e-3),
        of("torchvision", "efficientnet_v2_s"),
    ),
    "torchvision small mobilenet v3 in mmcls": (
        of("torchvision", "mobilenet_v3_small"),
        mmcls_mobilenet_v3("small", (576, 1024)),
    ),
    "torchvision large mobilenet v3 in mmcls": (
        of("torchvision", "mobilenet_v3_large"),
        mmcls_mobilenet_v3("large", (960, 1280)),
    ),
    "timm small mobilenet v3 in torchvision": (
        of("timm", "mobilenetv3_small_100", bn_eps=1e-3),
        of("torchvision", "mobilenet_v3_small"),
    ),
    "timm large mobilenet v3 in torchvision": (
        of("timm", "mobilenetv3_large_100", bn_eps=1e-3),
        of("torchvision", "mobilenet_v3_large"),
    ),
    "timm swin in mmcls": (timm_swin, mmcls_swin),
    "torchvision swin in timm": (torchvision_swin, timm_swin),
    "torchvision swin in mmcls": (torchvision_swin, mmcls_swin),
}


LARGE = {  # 54 and 130 million weights
    "timm efficientnet v2 m in torchvision": (
        of("timm", "efficientnetv2_m", bn_eps=1e-3),
        of("torchvision", "efficientnet_v2_m"),
    ),
    "torchvision vgg in mmcls": (of("torchvision", "vgg11"), mmcls_vgg(11)),
    "timm vgg-bn in mmcls": (of("timm", "vgg13_bn"), mmcls_vgg(13, {"type": "BN"})),
    "timm vgg in torchvision": (of("timm", "vgg16"), of("torchvision", "vgg16")),
    "torchvision vgg-bn in mmcls": (
        of("torchvision", "vgg19_bn"),
        mmcls_vgg(19, {"type": "BN"}),
    ),
}


@pytest.mark.parametrize(
    "pair",
    [
        *(pytest.param(pair, id=name) for name, pair in PAIRS.items()),
        *(pytest.param(p, id=n, marks=pytest.mark.slow) for n, p in LARGE.items()),
    ],
)
@pytest.mark.parametrize("back", [False, True], ids=["there", "back"])
def test_weights_of_one_give_its_logits_in_the_other(pair, back, tmp_path, caplog):
    first, second = (make() for make in (reversed(pair) if back else pair))
    randomized(first, 0), randomized(second, 1)
    save_checkpoint(first, tmp_path / "epoch_1.pth")
    with caplog.at_level(logging.INFO):
        load_checkpoint(second, tmp_path / "epoch_1.pth")
    if not any(type(model).__name__ == "GPT2LMHeadModel" for model in (first, second)):
        assert "loaded all" in caplog.text  # its lm_head is its wte
    assert torch.allclose(logits(first), logits(second), rtol=1e-4, atol=1e-5)
    assert logits(first).std() > 1e-3


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (ours_resnet, mmcls_resnet),
        (ours_vit, mmcls_vit),
        (of("torchvision", "mobilenet_v2"), mmcls_mobilenet),
    ],
)
def test_mmcvs_own_reader_takes_what_is_written_for_mmcls(ours, theirs, tmp_path):
    model, other = randomized(ours(), 0), randomized(theirs(), 1)
    from mmcv.runner import load_checkpoint as theirs_load

    written = relaid(model.state_dict(), "mmcls")
    write_mmcv_checkpoint(tmp_path / "a.pth", written, meta={"epoch": 1, "iter": 2})
    theirs_load(other, str(tmp_path / "a.pth"), map_location="cpu", strict=True)
    assert torch.allclose(logits(model), logits(other), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("ours", "theirs", "layout"),
    [
        (ours_resnet, torchvision_resnet, "torchvision"),
        (ours_vit, torchvision_vit, "torchvision"),
        (ours_resnet, timm_resnet, "timm"),
        (ours_vit, timm_vit, "timm"),
        (ours_gpt, hub_gpt, "transformers"),
        (small_resnet, hub_resnet, "transformers"),
        (mmcls_swin, timm_swin, "timm"),
        (mmcls_swin, torchvision_swin, "torchvision"),
        (timm_convnext, torchvision_convnext, "torchvision"),
    ],
)
def test_others_take_what_is_written_for_them_by_torch_alone(ours, theirs, layout):
    model, other = randomized(ours(), 0), randomized(theirs(), 1)
    written = relaid(model.state_dict(), layout)
    missing, unexpected = other.load_state_dict(written, strict=False)
    made = ("lm_head.weight", "relative_position_index")
    assert unexpected == [] and all(key.endswith(made) for key in missing)
    assert torch.allclose(logits(model), logits(other), rtol=1e-4, atol=1e-5)


def test_a_body_without_its_head_is_read_too(caplog):
    other = randomized(hub_vit(), 0)
    model, whole = randomized(ours_vit(), 1), randomized(ours_vit(), 2)
    load_state_dict(whole, other.state_dict())
    with caplog.at_level(logging.WARNING):
        load_state_dict(model, other.vit.state_dict())
    assert "2 missing: head.weight, head.bias" in caplog.text
    ours = model.state_dict()
    assert all(
        torch.equal(ours[key], value)
        for key, value in whole.state_dict().items()
        if not key.startswith("head.")
    )


def test_positions_are_interpolated_as_mmcls_does():
    small, other = randomized(mmcls_vit(), 0), randomized(mmcls_vit(64), 1)
    model: nn.Module = randomized(ours_vit(img_size=64), 2)
    other.load_state_dict(dict(small.state_dict()))  # by its own hook
    load_state_dict(model, small.state_dict())
    assert torch.allclose(model.pos_embed, other.backbone.pos_embed, atol=1e-6)


def test_torchvisions_own_files_have_other_names_than_its_code(caplog):
    other, model = randomized(torchvision_vit(), 0), randomized(ours_vit(), 1)
    published = {
        key.replace(".mlp.0.", ".mlp.linear_1.").replace(".mlp.3.", ".mlp.linear_2."): v
        for key, v in other.state_dict().items()
    }
    load_state_dict(model, published, strict=True)
    assert torch.allclose(logits(model), logits(other), rtol=1e-4, atol=1e-5)


def test_swins_first_files_are_read_as_timm_reads_them(caplog):
    model, other = randomized(timm_swin(), 0), randomized(timm_swin(), 1)
    published = {"layers.0.blocks.0.attn.relative_position_index": torch.zeros(4, 4)}
    for key, value in model.state_dict().items():
        stage, found = key.split(".")[1], ".downsample." in key
        name = key.replace("head.fc.", "head.")
        if found:
            name = key.replace(f"layers.{stage}.", f"layers.{int(stage) - 1}.")
        published[name] = value
    published["layers.2.blocks.1.attn_mask"] = torch.zeros(4, 4, 4)
    from timm.models.swin_transformer import checkpoint_filter_fn

    theirs = checkpoint_filter_fn(dict(published), other)
    load_state_dict(other, published, strict=True)
    assert all(torch.equal(v, theirs[k]) for k, v in other.state_dict().items())
    assert torch.allclose(logits(model), logits(other), rtol=1e-4, atol=1e-5)
