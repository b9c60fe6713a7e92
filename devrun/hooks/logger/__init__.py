"""Loggers: the text log, and writers of other tools."""

from devrun.hooks.logger.hook import LoggerHook, TextLoggerHook
from devrun.hooks.logger.writers import (
    MlflowLoggerHook,
    TensorboardLoggerHook,
    WandbLoggerHook,
)

__all__ = [
    "LoggerHook",
    "MlflowLoggerHook",
    "TensorboardLoggerHook",
    "TextLoggerHook",
    "WandbLoggerHook",
]
