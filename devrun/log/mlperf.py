"""MLPerf's events in a file, by the package mlperf-logging."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from devrun.errors import ConfigError


def logger_type() -> Any:
    """The package's `MLLogger`.

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
    return MLLogger


def mllog(kind: Any, path: Path) -> Any:
    """Such a logger, writing to `path` alone."""
    logger = logging.Logger(str(path), logging.INFO)
    handler = logging.FileHandler(path, mode="w", encoding="utf-8")
    handler.setFormatter(logging.Formatter("%(message)s"))
    logger.addHandler(handler)
    return kind(logger)
