"""Reference models, losses, and the wrapper that gives every model one step."""

from devrun.models.build import build_loss, build_model
from devrun.models.fp16 import auto_fp16, force_fp32, wrap_fp16_model
from devrun.models.gpt import GPT
from devrun.models.mlp import MLP
from devrun.models.resnet import ResNet
from devrun.models.step_module import StepModule
from devrun.models.vit import VisionTransformer
from devrun.registry import LOSSES, MODELS

__all__ = [
    "GPT",
    "LOSSES",
    "MLP",
    "MODELS",
    "ResNet",
    "StepModule",
    "VisionTransformer",
    "auto_fp16",
    "build_loss",
    "build_model",
    "force_fp32",
    "wrap_fp16_model",
]
