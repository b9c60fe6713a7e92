"""What a tensor is called where: a table for each layout of a model's weights.

A row is `our name: their name`. `{}` stands for a number, a dot at the end for each
tensor of that module, `.*` for all that begins so. `{q|k|v}` stands for several tensors
of theirs which, one below the other, are ours. What follows `@` is the form that theirs
has (`layout_forms`). Ours are the names of devrun's models where it has the model, else
timm's or torchvision's. A table is read in both directions, so that any layout of a
model translates into any other.
"""

from __future__ import annotations

Tables = dict[str, tuple[tuple[str, ...], dict[str, dict[str, str]]]]
"""Model -> (the names of our layout, name of another layout -> its table)."""

TABLES: Tables = {
    "ResNet": (
        ("torchvision", "timm"),
        {
            "mmcls": {
                "conv1.": "backbone.conv1.",
                "bn1.": "backbone.bn1.",
                "layer{}.{}.*": "backbone.layer{}.{}.*",
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
                "layer{}.{}.*": "backbone.layer{}.{}.*",
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
                "blocks.{}.attn.*": "backbone.layers.{}.attn.*",
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
                "blocks.{}.mlp.*": "vit.layers.{}.mlp.*",
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
                "h.{}.attn.c_attn.weight": "transformer.h.{}.attn.c_attn.weight@turned",
                "h.{}.attn.c_attn.bias": "transformer.h.{}.attn.c_attn.bias",
                "h.{}.attn.c_proj.weight": "transformer.h.{}.attn.c_proj.weight@turned",
                "h.{}.attn.c_proj.bias": "transformer.h.{}.attn.c_proj.bias",
                "h.{}.mlp.c_fc.weight": "transformer.h.{}.mlp.c_fc.weight@turned",
                "h.{}.mlp.c_fc.bias": "transformer.h.{}.mlp.c_fc.bias",
                "h.{}.mlp.c_proj.weight": "transformer.h.{}.mlp.c_proj.weight@turned",
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

_CONVNEXT = TABLES["ConvNeXt"][1]
_CONVNEXT["transformers"] = {
    "stem.0.": "convnext.embeddings.patch_embeddings.",
    "stem.1.": "convnext.embeddings.layernorm.",
    "stages.{}.downsample.{}.": "convnext.encoder.stages.{}.downsampling_layer.{}.",
    **{
        "stages.{}.blocks.{}." + ours: "convnext.encoder.stages.{}.layers.{}." + his
        for ours, his in (
            ("gamma", "layer_scale_parameter"),
            ("conv_dw.", "dwconv."),
            ("norm.", "layernorm."),
            ("mlp.fc{}.", "pwconv{}."),
        )
    },
    "head.norm.": "convnext.layernorm.",
    "head.fc.": "classifier.",
}
# torchvision numbers stages and what leads from one to the next through
_CONVNEXT["torchvision"] = {
    "stem.{}.": "features.0.{}.",
    **{
        f"stages.{n}.blocks.{{}}.{ours}": f"features.{2 * n + 1}.{{}}.{his}"
        for n in range(4)
        for ours, his in (
            ("gamma", "layer_scale@1x1"),
            ("conv_dw.", "block.0."),
            ("norm.", "block.2."),
            ("mlp.fc1.", "block.3."),
            ("mlp.fc2.", "block.5."),
        )
    },
    **{f"stages.{n}.downsample.{{}}.": f"features.{2 * n}.{{}}." for n in (1, 2, 3)},
    "head.norm.": "classifier.0.",
    "head.fc.": "classifier.2.",
}

TABLES["ResNet"][1]["transformers"] = {
    "conv1.": "resnet.embedder.embedder.convolution.",
    "bn1.": "resnet.embedder.embedder.normalization.",
    **{
        f"layer{n + 1}.{{}}.{ours}": f"resnet.encoder.stages.{n}.layers.{{}}.{his}"
        for n in range(4)
        for ours, his in (
            *((f"conv{at + 1}.", f"layer.{at}.convolution.") for at in range(3)),
            *((f"bn{at + 1}.", f"layer.{at}.normalization.") for at in range(3)),
            ("downsample.0.", "shortcut.convolution."),
            ("downsample.1.", "shortcut.normalization."),
        )
    },
    "fc.": "classifier.1.",
}

_SWIN_BLOCK = {
    "norm1.": ("norm1.", "norm1."),
    "attn.qkv.": ("attn.qkv.", "attn.w_msa.qkv."),
    "attn.proj.": ("attn.proj.", "attn.w_msa.proj."),
    "attn.relative_position_bias_table": (
        "attn.relative_position_bias_table",
        "attn.w_msa.relative_position_bias_table",
    ),
    "norm2.": ("norm2.", "norm2."),
    "mlp.fc1.": ("mlp.0.", "ffn.layers.0.0."),
    "mlp.fc2.": ("mlp.3.", "ffn.layers.1."),
}
"""Ours -> torchvision's and MMCls's names in a block of Swin."""
# timm merges patches at the beginning of a stage, MMCls and the first files at the end
TABLES["SwinTransformer"] = (
    ("timm",),
    {
        "mmcls": {
            "patch_embed.proj.": "backbone.patch_embed.projection.",
            "patch_embed.norm.": "backbone.patch_embed.norm.",
            **{
                "layers.{}.blocks.{}." + ours: "backbone.stages.{}.blocks.{}." + his
                for ours, (_, his) in _SWIN_BLOCK.items()
            },
            **{
                f"layers.{n + 1}.downsample.{ours}.": (
                    f"backbone.stages.{n}.downsample.{ours}.@unfolded"
                )
                for n in range(3)
                for ours in ("norm", "reduction")
            },
            "norm.": "backbone.norm3.",
            "head.fc.": "head.fc.",
        },
        "torchvision": {
            "patch_embed.proj.": "features.0.0.",
            "patch_embed.norm.": "features.0.2.",
            **{
                f"layers.{n}.blocks.{{}}.{ours}": f"features.{2 * n + 1}.{{}}.{his}"
                for n in range(4)
                for ours, (his, _) in _SWIN_BLOCK.items()
            },
            **{
                f"layers.{n}.downsample.{ours}.": f"features.{2 * n}.{ours}."
                for n in (1, 2, 3)
                for ours in ("norm", "reduction")
            },
            "norm.": "norm.",
            "head.fc.": "head.",
        },
        "microsoft": {
            "patch_embed.proj.": "patch_embed.proj.",
            "patch_embed.norm.": "patch_embed.norm.",
            **{
                name: name
                for ours in _SWIN_BLOCK
                for name in ["layers.{}.blocks.{}." + ours]
            },
            **{
                f"layers.{n + 1}.downsample.{ours}.": f"layers.{n}.downsample.{ours}."
                for n in range(3)
                for ours in ("norm", "reduction")
            },
            "norm.": "norm.",
            "head.fc.": "head.",
        },
    },
)

_OLD = {"mlp.0.": "mlp.linear_1.", "mlp.3.": "mlp.linear_2."}
"""In torchvision's own files of Vision Transformers, which are older than its code."""
_VIT = TABLES["VisionTransformer"][1]
_VIT["torchvision's files"] = {
    ours: next((theirs.replace(a, b) for a, b in _OLD.items() if a in theirs), theirs)
    for ours, theirs in _VIT["torchvision"].items()
}
