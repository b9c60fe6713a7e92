"""Reference models, losses, and the wrapper that gives every model one step."""

from devrun.models.build import build_loss, build_model
from devrun.models.gpt import GPT
from devrun.models.lstm import LSTM
from devrun.models.mlp import MLP
from devrun.models.resnet import ResNet
from devrun.models.step_function import StepFunction
from devrun.models.step_module import StepModule, wrap_fp16_model
from devrun.models.vit import VisionTransformer
from devrun.registry import LOSSES, MODELS

__all__ = [
    "GPT",
    "LOSSES",
    "LSTM",
    "MLP",
    "MODELS",
    "ResNet",
    "StepFunction",
    "StepModule",
    "VisionTransformer",
    "build_loss",
    "build_model",
    "wrap_fp16_model",
]
