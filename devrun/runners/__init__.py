"""Runners: the loops, what they own, and how a config becomes one."""

from devrun.hooks.base import Priority, get_priority
from devrun.registry import RUNNER_BUILDERS, RUNNERS
from devrun.runners.helpers import (
    DefaultRunnerConstructor,
    build_runner,
    build_runner_constructor,
    get_host_info,
    get_time_str,
    set_random_seed,
)
from devrun.runners.kinds import EpochBasedRunner, IterBasedRunner, Runner
from devrun.runners.runner import BaseRunner
from devrun.runners.workflow import IterLoader

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
