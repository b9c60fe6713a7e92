"""The Vision Transformer.

Dosovitskiy et al. 2021, "An Image is Worth 16x16 Words" (arXiv:2010.11929); parameter
names as in timm, so that weights in its form load.
"""

from __future__ import annotations

import math
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from devrun.errors import ConfigError
from devrun.registry import MODELS


class PatchEmbed(nn.Module):
    """Image (N, C, H, W) -> patches (N, H*W/patch_size^2, embed_dim)."""

    def __init__(self, patch_size: int, in_channels: int, embed_dim: int) -> None:
        super().__init__()
        self.proj = nn.Conv2d(in_channels, embed_dim, patch_size, patch_size)

    def forward(self, x: Tensor) -> Tensor:
        patches: Tensor = self.proj(x)
        return patches.flatten(2).transpose(1, 2)


class Attention(nn.Module):
    """Multi-head self-attention."""

    def __init__(self, dim: int, num_heads: int, dropout: float) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, dim = x.shape
        heads = (batch, length, 3, -1, dim // self.num_heads)  # all, or those here
        query, key, value = self.qkv(x).view(heads).permute(2, 0, 3, 1, 4).unbind(0)
        out = F.scaled_dot_product_attention(query, key, value)
        out = out.transpose(1, 2).flatten(2)
        mixed: Tensor = self.dropout(self.proj(out))
        return mixed


class Mlp(nn.Module):
    def __init__(self, dim: int, hidden: int, dropout: float) -> None:
        super().__init__()
        self.fc1 = nn.Linear(dim, hidden)
        self.fc2 = nn.Linear(hidden, dim)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.dropout(self.fc2(self.dropout(F.gelu(self.fc1(x)))))
        return out


class Block(nn.Module):
    """Pre-norm attention and MLP, each around a shortcut."""

    def __init__(
        self, dim: int, num_heads: int, mlp_ratio: float, dropout: float
    ) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(dim, eps=1e-6)
        self.attn = Attention(dim, num_heads, dropout)
        self.norm2 = nn.LayerNorm(dim, eps=1e-6)
        self.mlp = Mlp(dim, int(dim * mlp_ratio), dropout)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.norm1(x))
        out: Tensor = x + self.mlp(self.norm2(x))
        return out


@MODELS.register_module()
class VisionTransformer(nn.Module):
    """Input (N, in_channels, img_size, img_size); output (N, num_classes).

    The defaults are ViT-B/16 at 224. `dropout` follows the paper: after the position
    embedding and after every dense layer but those for query, key and value.

    Raises:
        ConfigError: img_size is no multiple of patch_size, or embed_dim none of
            num_heads; from `forward`, an image of another size.
    """

    fsdp_blocks = ("Block",)
    """Classes of what is gathered at a time where weights are divided."""
    tensor_plan: ClassVar = {
        "blocks.*.attn.qkv": "qkv",
        "blocks.*.attn.proj": "rowwise",
        "blocks.*.mlp.fc1": "colwise",
        "blocks.*.mlp.fc2": "rowwise",
    }
    """How single matrices are divided (`devrun.parallel`)."""

    def __init__(
        self,
        img_size: int = 224,
        patch_size: int = 16,
        embed_dim: int = 768,
        depth: int = 12,
        num_heads: int = 12,
        mlp_ratio: float = 4.0,
        dropout: float = 0.0,
        num_classes: int = 1000,
        in_channels: int = 3,
    ) -> None:
        super().__init__()
        for name, size, part_name, part in (
            ("img_size", img_size, "patch_size", patch_size),
            ("embed_dim", embed_dim, "num_heads", num_heads),
        ):
            if size % part:
                raise ConfigError.of(
                    name, f"{size} is not a multiple of {part_name} {part}"
                )
        self.img_size = img_size
        num_patches = (img_size // patch_size) ** 2
        self.cls_token = nn.Parameter(torch.zeros(1, 1, embed_dim))
        self.pos_embed = nn.Parameter(torch.zeros(1, num_patches + 1, embed_dim))
        self.patch_embed = PatchEmbed(patch_size, in_channels, embed_dim)
        self.pos_drop = nn.Dropout(dropout)
        self.blocks = nn.Sequential(
            *(Block(embed_dim, num_heads, mlp_ratio, dropout) for _ in range(depth))
        )
        self.norm = nn.LayerNorm(embed_dim, eps=1e-6)
        self.head = nn.Linear(embed_dim, num_classes)
        self._init_weights()

    def _init_weights(self) -> None:
        """As the authors' code (google-research/vision_transformer, models_vit.py).

        Xavier-uniform dense layers, query, key and value each as a matrix of its own;
        normal 0.02 positions; LeCun-normal patches; class token and head start at 0.
        """
        nn.init.normal_(self.pos_embed, std=0.02)
        fan_in = self.patch_embed.proj.weight[0].numel()
        nn.init.trunc_normal_(self.patch_embed.proj.weight, std=fan_in**-0.5)
        nn.init.zeros_(self.patch_embed.proj.bias)  # type: ignore[arg-type]
        for name, module in self.blocks.named_modules():
            if not isinstance(module, nn.Linear):
                continue
            if name.endswith("qkv"):
                bound = math.sqrt(6 / (2 * module.in_features))
                nn.init.uniform_(module.weight, -bound, bound)
            else:
                nn.init.xavier_uniform_(module.weight)
            if ".mlp." in name:
                nn.init.normal_(module.bias, std=1e-6)
            else:
                nn.init.zeros_(module.bias)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[-1] != self.img_size or x.shape[-2] != self.img_size:
            raise ConfigError(
                f"VisionTransformer was built for img_size {self.img_size}, "
                f"got images of {x.shape[-2]} x {x.shape[-1]}"
            )
        patches = self.patch_embed(x)
        first = self.cls_token.expand(patches.shape[0], -1, -1)
        tokens = self.pos_drop(torch.cat((first, patches), dim=1) + self.pos_embed)
        logits: Tensor = self.head(self.norm(self.blocks(tokens))[:, 0])
        return logits
