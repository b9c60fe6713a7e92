"""Parts of configs: small models of pictures, their data, and changes of a config."""

import copy

RESNET = {
    "type": "ResNet",
    "stage_blocks": [1, 1],
    "base_channels": 4,
    "stem": "cifar",
    "num_classes": 4,
}
VIT = {
    "type": "VisionTransformer",
    "img_size": 8,
    "patch_size": 4,
    "embed_dim": 16,
    "depth": 2,
    "num_heads": 2,
    "num_classes": 4,
}
IMAGES = {"type": "SyntheticImages", "shape": [3, 8, 8], "num_classes": 4}
HF_VIT = {
    "type": "transformers.ViTForImageClassification",
    "config": {
        "type": "transformers.ViTConfig",
        "hidden_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 16,
        "image_size": 8,
        "patch_size": 4,
        "num_labels": 4,
        "hidden_dropout_prob": 0.2,
    },
}
DATA = {
    "samples_per_gpu": 8,
    "train": {**IMAGES, "num_samples": 32},
    "val": {**IMAGES, "num_samples": 16, "offset": 32},
}


def changed(config, changes):
    """A copy of `config` with each dotted key of `changes` set to its value."""
    cfg = copy.deepcopy(config)
    for path, value in changes.items():
        *above, last = path.split(".")
        node = cfg
        for key in above:
            node = node[int(key)] if key.isdigit() else node.setdefault(key, {})
        node[int(last) if last.isdigit() else last] = value
    return cfg
