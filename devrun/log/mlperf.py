"""MLPerf's events in a file, by the package mlperf-logging."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from devrun.errors import ConfigError


def mllog(path: Path) -> Any:
    """The package's `MLLogger`, writing to `path` alone.

    Raises:
        ConfigError: the package is not here.
    """
    try:
        from mlperf_logging.mllog.mllog import MLLogger
    except ImportError:
        raise ConfigError(
            "a benchmark is logged by the package mlperf-logging: "
            "pip install mlperf-logging"
        ) from None
    logger = logging.Logger(str(path), logging.INFO)
    handler = logging.FileHandler(path, mode="w", encoding="utf-8")
    handler.setFormatter(logging.Formatter("%(message)s"))
    logger.addHandler(handler)
    return MLLogger(logger)
