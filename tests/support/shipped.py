"""Small ones of the shipped models, with data for each."""

import torch

from devrun.registry import MODELS

VECTORS = {"type": "SyntheticClassification", "num_samples": 16}
IMAGES = {**VECTORS, "shape": [3, 8, 8]}
TEXT = {"type": "TextCorpus", "files": "text.txt", "block_size": 16, "max_bytes": 200}
CASES = {
    "mlp": ({"type": "MLP", "in_features": 16, "num_classes": 4}, VECTORS),
    "resnet8": (
        {"type": "ResNet", "stem": "cifar", "stage_blocks": [1, 1], "num_classes": 4},
        IMAGES,
    ),
    "vit": (
        {
            "type": "VisionTransformer", "img_size": 8, "patch_size": 4,
            "embed_dim": 16, "depth": 2, "num_heads": 2, "num_classes": 4,
        },
        IMAGES,
    ),
    "gpt": (
        {
            "type": "GPT", "vocab_size": 256, "block_size": 16, "n_layer": 1,
            "n_head": 2, "n_embd": 16, "dropout": 0.0,
        },
        TEXT,
    ),
    "lstm": (
        {"type": "LSTM", "vocab_size": 256, "hidden_size": 16, "num_layers": 2},
        TEXT,
    ),
}  # fmt: skip


def model_of(name, weights):
    """The model of a case, outside any run, with the weights of a checkpoint."""
    cfg = dict(CASES[name][0])
    model = MODELS.build(cfg)
    model.load_state_dict(weights)
    return model.eval()


def samples(name, count):
    if CASES[name][1] is TEXT:
        return torch.randint(0, 256, (count, 16))
    return torch.randn(count, *CASES[name][1].get("shape", [16]))


def output_of(model, batch):
    found = model(batch)
    return found if isinstance(found, torch.Tensor) else found["logits"]
