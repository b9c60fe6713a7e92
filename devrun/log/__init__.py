"""What a run reports: the logger, the log buffer, and JSON lines."""

from devrun.log.buffer import LogBuffer as LogBuffer
from devrun.log.env import collect_env as collect_env
from devrun.log.logger import close_logger as close_logger
from devrun.log.logger import get_logger as get_logger
from devrun.log.logger import print_log as print_log
