"""What loggers share: packages that only one needs, and the files of a run's log."""

from __future__ import annotations

import importlib
import logging
from pathlib import Path
from typing import Any

from devrun.errors import ConfigError
from devrun.run import Run
from devrun.text import joined

CONFIG = "config.yaml"
"""The resolved config, which `devrun train` writes beside the logs."""


def import_extra(module: str, user: str, extra: str) -> Any:
    """The module `module`, which the class `user` needs.

    Raises:
        ConfigError: it is not installed (with the command that does it), or broken.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        missing = error.name or module
        raise ConfigError(
            f"{user} needs the package {missing.partition('.')[0]}: "
            f"pip install 'devrun[{extra}]'"
        ) from error
    except ImportError as error:
        cause = joined(error)
        raise ConfigError(f"{user} cannot import {module}: {cause}") from error


def own_logs(runner: Run, endings: tuple[str, ...]) -> list[Path]:
    """The files in `work_dir` that this run has logged to, and its config.

    No others, whatever they are called: a config may name any folder as `work_dir`.
    """
    work_dir = Path(str(runner.work_dir))
    handlers = [h for h in runner.logger.handlers if isinstance(h, logging.FileHandler)]
    written = [Path(handler.baseFilename) for handler in handlers]
    written += [work_dir / f"{runner.timestamp}.log.json", work_dir / CONFIG]
    return [
        path
        for path in written
        if path.parent == work_dir and path.name.endswith(endings)
        if path.is_file() and not path.is_symlink()
    ]
