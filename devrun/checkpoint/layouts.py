"""What a tensor is called where: a table for each layout of a model's weights.

A row is `our name: their name`. `{}` stands for a number and a dot at the end for all
that begins so. `{q|k|v}` stands for several tensors of theirs which, one below the
other, are ours. `.T` at the end says that theirs is transposed. Ours are the names of
devrun's models where it has the model, else timm's. A table is read in both
directions, so that any layout of a model translates into any other.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

_BODIES = ("backbone.", "transformer.")
"""What stands before the keys of the body of a model, which has its own files too."""

_TABLES: dict[str, tuple[tuple[str, ...], dict[str, dict[str, str]]]] = {
    "ResNet": (
        ("torchvision", "timm"),
        {
            "mmcls": {
                "conv1.": "backbone.conv1.",
                "bn1.": "backbone.bn1.",
                "layer{}.": "backbone.layer{}.",
                "fc.": "head.fc.",
            },
        },
    ),
    "ResNet-D": (
        ("timm",),
        {
            "mmcls": {
                "conv1.0.": "backbone.stem.0.conv.",
                "conv1.1.": "backbone.stem.0.bn.",
                "conv1.3.": "backbone.stem.1.conv.",
                "conv1.4.": "backbone.stem.1.bn.",
                "conv1.6.": "backbone.stem.2.conv.",
                "bn1.": "backbone.stem.2.bn.",
                # of stride 1, where timm keeps the place of the pooling
                "layer1.0.downsample.1.": "backbone.layer1.0.downsample.0.",
                "layer1.0.downsample.2.": "backbone.layer1.0.downsample.1.",
                "layer{}.": "backbone.layer{}.",
                "fc.": "head.fc.",
            },
        },
    ),
    "VisionTransformer": (
        ("timm",),
        {
            "mmcls": {
                "cls_token": "backbone.cls_token",
                "dist_token": "backbone.dist_token",
                "pos_embed": "backbone.pos_embed",
                "patch_embed.proj.": "backbone.patch_embed.projection.",
                "blocks.{}.norm1.": "backbone.layers.{}.ln1.",
                "blocks.{}.attn.": "backbone.layers.{}.attn.",
                "blocks.{}.norm2.": "backbone.layers.{}.ln2.",
                "blocks.{}.mlp.fc1.": "backbone.layers.{}.ffn.layers.0.0.",
                "blocks.{}.mlp.fc2.": "backbone.layers.{}.ffn.layers.1.",
                "norm.": "backbone.ln1.",
                "pre_logits.fc.": "head.layers.pre_logits.",
                "head.": "head.layers.head.",
                "head_dist.": "head.layers.head_dist.",
            },
            "torchvision": {
                "cls_token": "class_token",
                "pos_embed": "encoder.pos_embedding",
                "patch_embed.proj.": "conv_proj.",
                "blocks.{}.norm1.": "encoder.layers.encoder_layer_{}.ln_1.",
                "blocks.{}.attn.qkv.weight": (
                    "encoder.layers.encoder_layer_{}.self_attention.in_proj_weight"
                ),
                "blocks.{}.attn.qkv.bias": (
                    "encoder.layers.encoder_layer_{}.self_attention.in_proj_bias"
                ),
                "blocks.{}.attn.proj.": (
                    "encoder.layers.encoder_layer_{}.self_attention.out_proj."
                ),
                "blocks.{}.norm2.": "encoder.layers.encoder_layer_{}.ln_2.",
                "blocks.{}.mlp.fc1.": "encoder.layers.encoder_layer_{}.mlp.0.",
                "blocks.{}.mlp.fc2.": "encoder.layers.encoder_layer_{}.mlp.3.",
                "norm.": "encoder.ln.",
                "head.": "heads.head.",
            },
            "transformers": {
                "cls_token": "vit.embeddings.cls_token",
                "pos_embed": "vit.embeddings.position_embeddings",
                "patch_embed.proj.": "vit.embeddings.patch_embeddings.projection.",
                "blocks.{}.norm1.": "vit.encoder.layer.{}.layernorm_before.",
                "blocks.{}.attn.qkv.": (
                    "vit.encoder.layer.{}.attention.attention.{query|key|value}."
                ),
                "blocks.{}.attn.proj.": (
                    "vit.encoder.layer.{}.attention.output.dense."
                ),
                "blocks.{}.norm2.": "vit.encoder.layer.{}.layernorm_after.",
                "blocks.{}.mlp.fc1.": "vit.encoder.layer.{}.intermediate.dense.",
                "blocks.{}.mlp.fc2.": "vit.encoder.layer.{}.output.dense.",
                "norm.": "vit.layernorm.",
                "head.": "classifier.",
            },
            "transformers 5": {
                "cls_token": "vit.embeddings.cls_token",
                "pos_embed": "vit.embeddings.position_embeddings",
                "patch_embed.proj.": "vit.embeddings.patch_embeddings.projection.",
                "blocks.{}.norm1.": "vit.layers.{}.layernorm_before.",
                "blocks.{}.attn.qkv.": "vit.layers.{}.attention.{q|k|v}_proj.",
                "blocks.{}.attn.proj.": "vit.layers.{}.attention.o_proj.",
                "blocks.{}.norm2.": "vit.layers.{}.layernorm_after.",
                "blocks.{}.mlp.": "vit.layers.{}.mlp.",
                "norm.": "vit.layernorm.",
                "head.": "classifier.",
            },
        },
    ),
    "GPT": (
        ("devrun",),
        {
            "transformers": {
                "wte.": "transformer.wte.",
                "wpe.": "transformer.wpe.",
                "h.{}.ln_{}.": "transformer.h.{}.ln_{}.",
                "h.{}.attn.c_attn.weight": "transformer.h.{}.attn.c_attn.weight.T",
                "h.{}.attn.c_attn.bias": "transformer.h.{}.attn.c_attn.bias",
                "h.{}.attn.c_proj.weight": "transformer.h.{}.attn.c_proj.weight.T",
                "h.{}.attn.c_proj.bias": "transformer.h.{}.attn.c_proj.bias",
                "h.{}.mlp.c_fc.weight": "transformer.h.{}.mlp.c_fc.weight.T",
                "h.{}.mlp.c_fc.bias": "transformer.h.{}.mlp.c_fc.bias",
                "h.{}.mlp.c_proj.weight": "transformer.h.{}.mlp.c_proj.weight.T",
                "h.{}.mlp.c_proj.bias": "transformer.h.{}.mlp.c_proj.bias",
                "ln_f.": "transformer.ln_f.",
            },
        },
    ),
    "ConvNeXt": (
        ("timm",),
        {
            "mmcls": {
                "stem.{}.": "backbone.downsample_layers.0.{}.",
                "stages.{}.downsample.{}.": "backbone.downsample_layers.{}.{}.",
                "stages.{}.blocks.{}.gamma": "backbone.stages.{}.{}.gamma",
                "stages.{}.blocks.{}.conv_dw.": (
                    "backbone.stages.{}.{}.depthwise_conv."
                ),
                "stages.{}.blocks.{}.norm.": "backbone.stages.{}.{}.norm.",
                "stages.{}.blocks.{}.mlp.fc{}.": (
                    "backbone.stages.{}.{}.pointwise_conv{}."
                ),
                "head.norm.": "backbone.norm3.",
                "head.fc.": "head.fc.",
            },
        },
    ),
    "MlpMixer": (
        ("timm",),
        {
            "mmcls": {
                "stem.proj.": "backbone.patch_embed.projection.",
                "blocks.{}.norm{}.": "backbone.layers.{}.ln{}.",
                "blocks.{}.mlp_tokens.fc1.": "backbone.layers.{}.token_mix.layers.0.0.",
                "blocks.{}.mlp_tokens.fc2.": "backbone.layers.{}.token_mix.layers.1.",
                "blocks.{}.mlp_channels.fc1.": (
                    "backbone.layers.{}.channel_mix.layers.0.0."
                ),
                "blocks.{}.mlp_channels.fc2.": (
                    "backbone.layers.{}.channel_mix.layers.1."
                ),
                "norm.": "backbone.ln1.",
                "head.": "head.fc.",
            },
        },
    ),
}

_OLD = {"mlp.0.": "mlp.linear_1.", "mlp.3.": "mlp.linear_2."}
"""In torchvision's own files of Vision Transformers, which are older than its code."""
_VIT = _TABLES["VisionTransformer"][1]
_VIT["torchvision's files"] = {
    ours: next((theirs.replace(a, b) for a, b in _OLD.items() if a in theirs), theirs)
    for ours, theirs in _VIT["torchvision"].items()
}


class Piece(NamedTuple):
    """A tensor under its name in a layout, and what of ours it is."""

    key: str
    part: int = 0
    parts: int = 1
    transposed: bool = False


@dataclass(frozen=True)
class Layout:
    """The names that `names` give the tensors of `model`."""

    model: str
    names: tuple[str, ...]
    table: Mapping[str, str]

    @functools.cached_property
    def _rows(self) -> list[tuple[_Template, _Template]]:
        return [(_Template(ours), _Template(his)) for ours, his in self.table.items()]

    def read(self, key: str) -> tuple[str, Piece] | None:
        """Our name for what is `key` in this layout, and which piece of it that is."""
        for ours, theirs in self._rows:
            if (found := theirs.match(key)) is not None:
                numbers, alternative, rest = found
                piece = Piece(key, alternative, theirs.parts, theirs.transposed)
                return ours.fill(numbers, 0, rest), piece
        return None

    def write(self, name: str) -> list[Piece]:
        """The tensors of this layout that ours of that name is; none if it has none."""
        for ours, theirs in self._rows:
            if (found := ours.match(name)) is not None:
                numbers, _, rest = found
                return [
                    Piece(
                        theirs.fill(numbers, part, rest),
                        part,
                        theirs.parts,
                        theirs.transposed,
                    )
                    for part in range(theirs.parts)
                ]
        return []


class _Template:
    """One side of a row."""

    def __init__(self, text: str) -> None:
        self.transposed = text.endswith(".T")
        self.pieces = re.split(r"(\{[^}]*\})", text.removesuffix(".T"))
        slots = [piece for piece in self.pieces if piece.startswith("{")]
        choices = [slot[1:-1].split("|") for slot in slots if slot != "{}"]
        self.choices = choices[0] if choices else [""]
        pattern = "".join(
            (f"(?P<part>{piece[1:-1]})" if "|" in piece else r"(\d+)")
            if piece.startswith("{")
            else re.escape(piece)
            for piece in self.pieces
        )
        self._regex = re.compile(pattern + ("(?P<rest>.+)" if text[-1] == "." else ""))

    @property
    def parts(self) -> int:
        return len(self.choices)

    def match(self, key: str) -> tuple[list[str], int, str] | None:
        """(numbers, which of the alternatives, the rest) of a key of this form."""
        found = None
        if key.startswith(self.pieces[0]):  # far quicker than the pattern
            found = self._regex.fullmatch(key)
        if found is None:
            return None
        named = found.groupdict()
        taken = {self._regex.groupindex[name] for name in named}
        numbers = [text for at, text in enumerate(found.groups(), 1) if at not in taken]
        part = self.choices.index(named["part"]) if "part" in named else 0
        return numbers, part, named.get("rest", "")

    def fill(self, numbers: list[str], part: int, rest: str) -> str:
        """The key of this form with these numbers."""
        given = iter(numbers)
        return (
            "".join(
                (self.choices[part] if "|" in piece else next(given))
                if piece.startswith("{")
                else piece
                for piece in self.pieces
            )
            + rest
        )


def _layouts() -> Iterator[Layout]:
    for model, (names, tables) in _TABLES.items():
        ours = dict.fromkeys(name for table in tables.values() for name in table)
        yield Layout(model, names, {name: name for name in ours})
        for name, table in tables.items():
            yield Layout(model, (name,), table)
            body = {
                mine: theirs.partition(".")[2]
                for mine, theirs in table.items()
                if theirs.startswith(_BODIES)
            }
            if body:
                yield Layout(model, (f"{name} without head",), body)


LAYOUTS = tuple(_layouts())
"""Of each model ours first."""
