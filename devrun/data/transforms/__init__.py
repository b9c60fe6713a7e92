"""Image transforms for `pipeline` lists: on tensors (C, H, W) and on Pillow images.

    pipeline:
    - {type: RandomResizedCrop, size: 224}
    - {type: RandomHorizontalFlip}
    - {type: ToTensor}
    - {type: Normalize, mean: [0.485, 0.456, 0.406], std: [0.229, 0.224, 0.225]}

Random ones draw from Python's `random`, which the loader seeds for each sample. A
dotted path names anybody else's: `type: torchvision.transforms.RandAugment`.
"""

from devrun.data.transforms.compose import Compose, build_pipeline
from devrun.data.transforms.geometry import (
    CenterCrop,
    RandomCrop,
    RandomHorizontalFlip,
    RandomResizedCrop,
    Resize,
)
from devrun.data.transforms.of_timm import TimmTransform
from devrun.data.transforms.values import ColorJitter, Normalize, ToTensor

__all__ = [
    "CenterCrop",
    "ColorJitter",
    "Compose",
    "Normalize",
    "RandomCrop",
    "RandomHorizontalFlip",
    "RandomResizedCrop",
    "Resize",
    "TimmTransform",
    "ToTensor",
    "build_pipeline",
]
