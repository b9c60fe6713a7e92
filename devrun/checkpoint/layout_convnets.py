"""Tables of models whose packages number their layers in different ways.

Written as `layout_tables` are; where a number of theirs is not ours, a row stands for
each. Checked against the packages by `tests/checkpoint/test_other_packages.py`.
"""

from __future__ import annotations

from collections.abc import Iterator

from devrun.checkpoint.layout_tables import Tables

Table = dict[str, dict[str, str]]
"""Name of another layout -> its rows."""

_VGG = {
    "VGG-11": (1, 1, 2, 2, 2),
    "VGG-13": (2, 2, 2, 2, 2),
    "VGG-16": (2, 2, 3, 3, 3),
    "VGG-19": (2, 2, 4, 4, 4),
}
"""Convolutions of each stage (Simonyan and Zisserman 2014, arXiv:1409.1556)."""

_STAGES = (1, 2, 3, 4, 3, 3, 1)
"""Blocks of each stage of MobileNetV2 (Sandler et al. 2018, arXiv:1801.04381)."""


def _vgg(stages: tuple[int, ...], norm: bool) -> Table:
    """Ours is torchvision's, where a convolution, its norm and its ReLU are three
    layers and the pooling is one; with MMCls the three are one."""
    mmcls, ours, theirs = {}, 0, 0
    for count in stages:
        for _ in range(count):
            mmcls[f"features.{ours}."] = f"backbone.features.{theirs}.conv."
            if norm:
                mmcls[f"features.{ours + 1}."] = f"backbone.features.{theirs}.bn."
            ours, theirs = ours + 2 + norm, theirs + 1
        ours, theirs = ours + 1, theirs + 1
    return {
        "mmcls": {**mmcls, "classifier.{}.": "backbone.classifier.{}."},
        "timm": {
            **{name: name for name in mmcls},
            "classifier.0.weight": "pre_logits.fc1.weight@7x7",
            "classifier.0.bias": "pre_logits.fc1.bias",
            "classifier.3.weight": "pre_logits.fc2.weight@1x1",
            "classifier.3.bias": "pre_logits.fc2.bias",
            "classifier.6.": "head.fc.",
        },
    }


def _mobilenet_v2() -> Table:
    """Ours is timm's; torchvision numbers the blocks through."""
    torchvision = {
        "conv_stem.": "features.0.0.",
        "bn1.": "features.0.1.",
        "conv_head.": "features.18.0.",
        "bn2.": "features.18.1.",
        "classifier.": "classifier.1.",
    }
    mmcls = {
        "conv_stem.": "backbone.conv1.conv.",
        "bn1.": "backbone.conv1.bn.",
        "conv_head.": "backbone.conv2.conv.",
        "bn2.": "backbone.conv2.bn.",
        "classifier.": "head.fc.",
    }
    for number, (stage, block) in enumerate(_blocks(_STAGES), start=1):
        names = ("conv_pw", "conv_dw", "conv_pwl") if stage else ("conv_dw", "conv_pw")
        for at, name in enumerate(names):
            last = at == len(names) - 1
            ours = f"blocks.{stage}.{block}"
            flat = f"features.{number}.conv"
            layer = f"backbone.layer{stage + 1}.{block}.conv.{at}"
            torchvision |= {
                f"{ours}.{name}.": f"{flat}.{at}." if last else f"{flat}.{at}.0.",
                f"{ours}.bn{at + 1}.": (
                    f"{flat}.{at + 1}." if last else f"{flat}.{at}.1."
                ),
            }
            mmcls |= {
                f"{ours}.{name}.": f"{layer}.conv.",
                f"{ours}.bn{at + 1}.": f"{layer}.bn.",
            }
    return {"torchvision": torchvision, "mmcls": mmcls}


def _blocks(stages: tuple[int, ...]) -> Iterator[tuple[int, int]]:
    return ((stage, n) for stage, count in enumerate(stages) for n in range(count))


def _mobilenet_v3(stages: tuple[int, ...], squeezed: set[int]) -> Table:
    """Ours is torchvision's, which numbers the blocks through; `squeezed` have weights
    of their channels by SE. timm's classifier begins with a convolution."""
    last = sum(stages) + 1
    timm = {
        "features.0.0.": "conv_stem.",
        "features.0.1.": "bn1.",
        f"features.{last}.0.": f"blocks.{len(stages)}.0.conv.",
        f"features.{last}.1.": f"blocks.{len(stages)}.0.bn1.",
        "classifier.0.weight": "conv_head.weight@1x1",
        "classifier.0.bias": "conv_head.bias",
        "classifier.3.": "classifier.",
    }
    mmcls = {
        "features.0.0.": "backbone.layer0.conv.",
        "features.0.1.": "backbone.layer0.bn.",
        f"features.{last}.0.": f"backbone.layer{last}.conv.",
        f"features.{last}.1.": f"backbone.layer{last}.bn.",
        "classifier.0.": "head.layers.0.fc.",
        "classifier.3.": "head.layers.1.fc.",
    }
    for number, (stage, block) in enumerate(_blocks(stages), start=1):
        ours, his = f"features.{number}.block", f"blocks.{stage}.{block}"
        theirs, at = f"backbone.layer{number}", 0
        names = ("conv_pw", "conv_dw", "conv_pwl") if stage else ("conv_dw", "conv_pw")
        kinds = ("expand", "depthwise", "linear")[-len(names) :]
        for norm, (name, kind) in enumerate(zip(names, kinds, strict=True), start=1):
            if kind == "linear" and number in squeezed:
                timm[f"{ours}.{at}.fc1."] = f"{his}.se.conv_reduce."
                timm[f"{ours}.{at}.fc2."] = f"{his}.se.conv_expand."
                mmcls[f"{ours}.{at}.fc1."] = f"{theirs}.se.conv1.conv."
                mmcls[f"{ours}.{at}.fc2."] = f"{theirs}.se.conv2.conv."
                at += 1
            timm[f"{ours}.{at}.0."] = f"{his}.{name}."
            timm[f"{ours}.{at}.1."] = f"{his}.bn{norm}."
            mmcls[f"{ours}.{at}.0."] = f"{theirs}.{kind}_conv.conv."
            mmcls[f"{ours}.{at}.1."] = f"{theirs}.{kind}_conv.bn."
            at += 1
    return {"timm": timm, "mmcls": mmcls}


_LAYERS = {
    "depthwise": ("conv_dw", "se", "conv_pw"),
    "inverted": ("conv_pw", "conv_dw", "se", "conv_pwl"),
    "plain": ("conv",),
    "fused": ("conv_exp", "conv_pwl"),
}
"""timm's layers in each kind of block of the EfficientNets."""


def _efficientnet(*stages: str) -> Table:
    """Ours is timm's; `stages` are the kinds of their blocks."""
    torchvision = {
        "conv_stem.": "features.0.0.",
        "bn1.": "features.0.1.",
        "conv_head.": f"features.{len(stages) + 1}.0.",
        "bn2.": f"features.{len(stages) + 1}.1.",
        "classifier.": "classifier.1.",
    }
    for stage, kind in enumerate(stages):
        ours, theirs = f"blocks.{stage}.{{}}", f"features.{stage + 1}.{{}}.block"
        norm = 0
        for at, name in enumerate(_LAYERS[kind]):
            if name == "se":
                torchvision[f"{ours}.se.conv_reduce."] = f"{theirs}.{at}.fc1."
                torchvision[f"{ours}.se.conv_expand."] = f"{theirs}.{at}.fc2."
                continue
            norm += 1
            torchvision[f"{ours}.{name}."] = f"{theirs}.{at}.0."
            torchvision[f"{ours}.bn{norm}."] = f"{theirs}.{at}.1."
    return {"torchvision": torchvision}


CONVNETS: Tables = {
    **{
        name + ("-BN" if norm else ""): (("torchvision",), _vgg(stages, norm))
        for name, stages in _VGG.items()
        for norm in (False, True)
    },
    "MobileNetV2": (("timm",), _mobilenet_v2()),
    "MobileNetV3-Small": (
        ("torchvision",),
        _mobilenet_v3((1, 2, 3, 2, 3), {1, *range(4, 12)}),
    ),
    "MobileNetV3-Large": (
        ("torchvision",),
        _mobilenet_v3((1, 2, 3, 4, 2, 3), {4, 5, 6, *range(11, 16)}),
    ),
    "EfficientNet": (("timm",), _efficientnet("depthwise", *["inverted"] * 6)),
    "EfficientNetV2-S": (
        ("timm",),
        _efficientnet("plain", "fused", "fused", *["inverted"] * 3),
    ),
    "EfficientNetV2-M": (
        ("timm",),
        _efficientnet("plain", "fused", "fused", *["inverted"] * 4),
    ),
}
