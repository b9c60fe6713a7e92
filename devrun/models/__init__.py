"""Reference models, losses, and the wrapper that gives every model one step."""

from devrun.models.build import build_loss as build_loss
from devrun.models.build import build_model as build_model
from devrun.models.gpt import GPT as GPT
from devrun.models.lstm import LSTM as LSTM
from devrun.models.mlp import MLP as MLP
from devrun.models.resnet import ResNet as ResNet
from devrun.models.step_function import StepFunction as StepFunction
from devrun.models.step_module import StepModule as StepModule
from devrun.models.step_module import wrap_fp16_model as wrap_fp16_model
from devrun.models.vit import VisionTransformer as VisionTransformer
from devrun.registry import LOSSES as LOSSES
from devrun.registry import MODELS as MODELS
