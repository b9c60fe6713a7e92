"""Configurations: files, inheritance, the command line, one tree with line numbers.

cfg = Config.fromfile("configs/digits/resnet8_digits.yaml")
cfg.merge_from_dict({"optimizer.lr": 0.01})
check_config(cfg)
"""

from devrun.config.config import Config as Config
from devrun.config.loader import MissingFileError as MissingFileError
from devrun.config.options import DictAction as DictAction
from devrun.config.options import parse_value as parse_value
from devrun.config.origin import redacted as redacted
from devrun.config.schema import KEYS as KEYS
from devrun.config.schema import check_config as check_config
from devrun.config.tree import ConfigDict as ConfigDict
from devrun.config.tree import ConfigList as ConfigList
from devrun.config.tree import MissingKeyError as MissingKeyError
from devrun.config.tree import where as where
