"""Residual networks for images of any size.

He et al. 2016, "Deep Residual Learning for Image Recognition" (arXiv:1512.03385),
with the stride of a bottleneck in its 3x3 convolution, as torchvision has it; the
parameter names are torchvision's.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from devrun.errors import ConfigError
from devrun.registry import MODELS


class BasicBlock(nn.Module):
    """Two 3x3 convolutions around a shortcut."""

    expansion = 1

    def __init__(self, in_channels: int, channels: int, stride: int) -> None:
        super().__init__()
        self.conv1 = _conv(in_channels, channels, 3, stride)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = _conv(channels, channels, 3)
        self.bn2 = nn.BatchNorm2d(channels)
        self.downsample = _shortcut(in_channels, channels, stride)

    def forward(self, x: Tensor) -> Tensor:
        out = F.relu(self.bn1(self.conv1(x)), inplace=True)
        out = self.bn2(self.conv2(out))
        return F.relu(out + self.downsample(x), inplace=True)


class Bottleneck(nn.Module):
    """1x1, 3x3 and 1x1 convolutions around a shortcut."""

    expansion = 4

    def __init__(self, in_channels: int, channels: int, stride: int) -> None:
        super().__init__()
        out_channels = channels * self.expansion
        self.conv1 = _conv(in_channels, channels, 1)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = _conv(channels, channels, 3, stride)
        self.bn2 = nn.BatchNorm2d(channels)
        self.conv3 = _conv(channels, out_channels, 1)
        self.bn3 = nn.BatchNorm2d(out_channels)
        self.downsample = _shortcut(in_channels, out_channels, stride)

    def forward(self, x: Tensor) -> Tensor:
        out = F.relu(self.bn1(self.conv1(x)), inplace=True)
        out = F.relu(self.bn2(self.conv2(out)), inplace=True)
        out = self.bn3(self.conv3(out))
        return F.relu(out + self.downsample(x), inplace=True)


DEPTHS: dict[int, tuple[type[BasicBlock | Bottleneck], tuple[int, ...]]] = {
    18: (BasicBlock, (2, 2, 2, 2)),
    34: (BasicBlock, (3, 4, 6, 3)),
    50: (Bottleneck, (3, 4, 6, 3)),
    101: (Bottleneck, (3, 4, 23, 3)),
    152: (Bottleneck, (3, 8, 36, 3)),
}
"""Depth -> its blocks, and how many in each stage (table 1)."""


@MODELS.register_module()
class ResNet(nn.Module):
    """Input (N, in_channels, H, W); output (N, num_classes).

    Args:
        depth: 18, 34, 50, 101 or 152; or give `stage_blocks`.
        stem: `imagenet` (7x7 stride 2, max-pool) or `cifar` (3x3, no pooling), for
            small images.
        stage_blocks: basic blocks per stage of a network of one's own, such as
            (1, 1, 1) for a ResNet-8; each stage after the first halves the size and
            doubles the channels.
        base_channels: channels of the stem and the first stage.
        zero_init_residual: start every block as the identity (Goyal et al. 2017,
            arXiv:1706.02677, section 5.1).

    Raises:
        ConfigError: neither or both of depth and stage_blocks, or an unknown depth or
            stem.
    """

    fsdp_blocks = ("BasicBlock", "Bottleneck")
    """Classes of what is gathered at a time where weights are divided."""

    def __init__(
        self,
        depth: int | None = None,
        num_classes: int = 1000,
        in_channels: int = 3,
        stem: str = "imagenet",
        stage_blocks: Sequence[int] | None = None,
        base_channels: int = 64,
        zero_init_residual: bool = False,
    ) -> None:
        super().__init__()
        if (depth is None) == (not stage_blocks):
            raise ConfigError("give either depth or stage_blocks", key="stage_blocks")
        if depth not in (None, *DEPTHS):
            known = ", ".join(map(str, DEPTHS))
            raise ConfigError.of("depth", f"must be one of {known}, got {depth}")
        if stem not in ("imagenet", "cifar"):
            raise ConfigError.of("stem", f"must be imagenet or cifar, got {stem!r}")
        block, stages = DEPTHS[depth] if depth else (BasicBlock, stage_blocks or ())
        small = stem == "cifar"
        self.conv1 = _conv(in_channels, base_channels, 3 if small else 7, 2 - small)
        self.bn1 = nn.BatchNorm2d(base_channels)
        self.maxpool = nn.Identity() if small else nn.MaxPool2d(3, 2, padding=1)
        width = base_channels
        self.num_stages = len(stages)
        for index, count in enumerate(stages):
            channels = base_channels * 2**index
            blocks = []
            for position in range(count):
                stride = 2 if index > 0 and position == 0 else 1
                blocks.append(block(width, channels, stride))
                width = channels * block.expansion
            self.add_module(f"layer{index + 1}", nn.Sequential(*blocks))
        self.fc = nn.Linear(width, num_classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):  # He et al. 2015 (arXiv:1502.01852)
                nn.init.kaiming_normal_(module.weight, mode="fan_out")
            elif zero_init_residual and isinstance(module, (BasicBlock, Bottleneck)):
                last = module.bn2 if isinstance(module, BasicBlock) else module.bn3
                nn.init.zeros_(last.weight)

    def forward(self, x: Tensor) -> Tensor:
        x = self.maxpool(F.relu(self.bn1(self.conv1(x)), inplace=True))
        for index in range(self.num_stages):
            x = getattr(self, f"layer{index + 1}")(x)
        x = torch.flatten(F.adaptive_avg_pool2d(x, 1), 1)
        logits: Tensor = self.fc(x)
        return logits


def _conv(in_channels: int, out_channels: int, size: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(
        in_channels, out_channels, size, stride, padding=size // 2, bias=False
    )


def _shortcut(in_channels: int, out_channels: int, stride: int) -> nn.Module:
    if stride == 1 and in_channels == out_channels:
        return nn.Identity()
    return nn.Sequential(
        _conv(in_channels, out_channels, 1, stride), nn.BatchNorm2d(out_channels)
    )
