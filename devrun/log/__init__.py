"""What a run reports: the logger, the log buffer, and JSON lines."""

from devrun.log.buffer import LogBuffer
from devrun.log.env import collect_env, env_text
from devrun.log.logger import close_logger, get_logger, print_log

__all__ = [
    "LogBuffer",
    "close_logger",
    "collect_env",
    "env_text",
    "get_logger",
    "print_log",
]
