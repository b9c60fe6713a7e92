"""Runners: the loops, what they own, and how a config becomes one."""

from devrun.hooks.base import Priority as Priority
from devrun.hooks.base import get_priority as get_priority
from devrun.registry import RUNNER_BUILDERS as RUNNER_BUILDERS
from devrun.registry import RUNNERS as RUNNERS
from devrun.runners.helpers import DefaultRunnerConstructor as DefaultRunnerConstructor
from devrun.runners.helpers import build_runner as build_runner
from devrun.runners.helpers import build_runner_constructor as build_runner_constructor
from devrun.runners.helpers import get_host_info as get_host_info
from devrun.runners.helpers import get_time_str as get_time_str
from devrun.runners.helpers import set_random_seed as set_random_seed
from devrun.runners.kinds import EpochBasedRunner as EpochBasedRunner
from devrun.runners.kinds import IterBasedRunner as IterBasedRunner
from devrun.runners.kinds import Runner as Runner
from devrun.runners.runner import BaseRunner as BaseRunner
from devrun.runners.workflow import IterLoader as IterLoader
