"""Loggers: the text log, and writers of other tools."""

from devrun.hooks.logger.hook import LoggerHook
from devrun.hooks.logger.mlflow import MlflowLoggerHook
from devrun.hooks.logger.tensorboard import TensorboardLoggerHook
from devrun.hooks.logger.text import TextLoggerHook
from devrun.hooks.logger.wandb import WandbLoggerHook

__all__ = [
    "LoggerHook",
    "MlflowLoggerHook",
    "TensorboardLoggerHook",
    "TextLoggerHook",
    "WandbLoggerHook",
]
