"""Configurations: files, inheritance, the command line, one tree with line numbers.

cfg = Config.fromfile("configs/digits/resnet8_digits.yaml")
cfg.merge_from_dict({"optimizer.lr": 0.01})
check_config(cfg)
"""

from devrun.config.config import Config
from devrun.config.loader import MissingFileError
from devrun.config.options import DictAction, parse_value
from devrun.config.origin import redacted
from devrun.config.schema import KEYS, check_config
from devrun.config.tree import ConfigDict, ConfigList, MissingKeyError, where

__all__ = [
    "KEYS",
    "Config",
    "ConfigDict",
    "ConfigList",
    "DictAction",
    "MissingFileError",
    "MissingKeyError",
    "check_config",
    "parse_value",
    "redacted",
    "where",
]
