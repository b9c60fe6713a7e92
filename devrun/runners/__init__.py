"""Runners: the loops, what they own, and how a config becomes one."""

from devrun.hooks.base import Priority, get_priority
from devrun.registry import RUNNER_BUILDERS, RUNNERS
from devrun.runners.constructor import (
    DefaultRunnerConstructor,
    build_runner,
    build_runner_constructor,
)
from devrun.runners.endless import IterLoader
from devrun.runners.epoch import EpochBasedRunner, Runner
from devrun.runners.helpers import get_host_info, get_time_str, set_random_seed
from devrun.runners.iter import IterBasedRunner
from devrun.runners.runner import BaseRunner

__all__ = [
    "RUNNERS",
    "RUNNER_BUILDERS",
    "BaseRunner",
    "DefaultRunnerConstructor",
    "EpochBasedRunner",
    "IterBasedRunner",
    "IterLoader",
    "Priority",
    "Runner",
    "build_runner",
    "build_runner_constructor",
    "get_host_info",
    "get_priority",
    "get_time_str",
    "set_random_seed",
]
