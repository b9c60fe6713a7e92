"""Loggers: the text log, and writers of other tools."""

from devrun.hooks.logger.hook import LoggerHook as LoggerHook
from devrun.hooks.logger.hook import TextLoggerHook as TextLoggerHook
from devrun.hooks.logger.writers import MlflowLoggerHook as MlflowLoggerHook
from devrun.hooks.logger.writers import TensorboardLoggerHook as TensorboardLoggerHook
from devrun.hooks.logger.writers import WandbLoggerHook as WandbLoggerHook
