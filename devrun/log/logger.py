"""The `devrun` logger: console and file, rank-aware, safe to look at.

A library only logs to `logging.getLogger("devrun")`; whoever runs the program asks
for handlers here, once.
"""

from __future__ import annotations

import logging
import os
import sys
import textwrap
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from io import TextIOWrapper
from pathlib import Path
from typing import Any, cast

from devrun.dist import is_main
from devrun.errors import ConfigError, ConfigTypeError, UnknownNameError, nearest
from devrun.files import unfollowed
from devrun.redact import redact
from devrun.text import escape_controls, escape_lines

FORMAT = "%(asctime)s - %(name)s - %(levelname)s - %(message)s"
COLOURS = {logging.WARNING: 33, logging.ERROR: 31, logging.CRITICAL: 31}
"""Of ANSI (ECMA-48): yellow and red."""
MARGIN = 9
"""Columns of the time of day, below which a message goes on."""


class SafeFormatter(logging.Formatter):
    """MMCV's line, with control characters escaped.

    Args:
        tracebacks: whether a record's traceback is written below its line.
    """

    def __init__(self, *, tracebacks: bool = True) -> None:
        super().__init__(FORMAT)
        self.tracebacks = tracebacks

    def format(self, record: logging.LogRecord) -> str:
        return escape_lines(super().format(record))

    def formatException(self, ei: Any) -> str:  # noqa: N802 - logging's name
        return super().formatException(ei) if self.tracebacks else ""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802
        # Formatter.format appends the traceback kept from another handler
        if not self.tracebacks:
            record.exc_text = None
        return super().formatMessage(record)


class ConsoleFormatter(SafeFormatter):
    """On a terminal: the time of day and the message, in lines that fit, in colour.

    A record's `brief`, where it has one (`extra={"brief": ...}`), stands there for its
    message; what is read later, a file or a pipe, gets MMCV's line with all of it.
    `NO_COLOR` (https://no-color.org) is heeded.
    """

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802
        line = super().formatMessage(record)
        if not sys.stderr.isatty():
            return line
        level = f"{record.levelname.lower()}: " * (record.levelno in COLOURS)
        message = getattr(record, "brief", record.message)
        return f"{record.asctime[11:19]} {level}{message}"

    def format(self, record: logging.LogRecord) -> str:
        text = super().format(record)
        if not sys.stderr.isatty():
            return text
        if (width := _columns()) > MARGIN:
            text = "\n".join(_folded(line, width) for line in text.split("\n"))
        colour = COLOURS.get(record.levelno)
        if colour is None or os.environ.get("NO_COLOR"):
            return text
        return f"\x1b[{colour}m{text}\x1b[0m"


def _columns() -> int:
    """Of the terminal that stderr is; 0 of what only says that it is one."""
    try:
        return os.get_terminal_size(sys.stderr.fileno()).columns
    except (OSError, ValueError, AttributeError):
        return 0


class ConsoleHandler(logging.Handler):
    """Writes to the present `sys.stderr`, above a progress bar if one is shown."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            line = self.format(record)
            # A bar can only be there if its package was imported.
            bars = sys.modules.get("tqdm")
            if bars is not None:
                bars.tqdm.write(line, file=sys.stderr)
            else:
                sys.stderr.write(line + "\n")
                sys.stderr.flush()
        except (OSError, ValueError, TypeError):
            self.handleError(record)


class LogFile(logging.FileHandler):
    """A log file whose disk may fill up: one warning, and the run continues."""

    failed = False

    def _open(self) -> TextIOWrapper:
        file = open(  # noqa: SIM115 - FileHandler closes it
            self.baseFilename, self.mode, encoding="utf-8", opener=unfollowed
        )
        return cast(TextIOWrapper, file)

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802
        error = sys.exc_info()[1]
        if not isinstance(error, OSError):
            super().handleError(record)
        elif not self.failed:
            self.failed = True
            what = f"cannot write the log file {self.baseFilename}: {error.strerror}"
            sys.stderr.write(f"devrun: warning: {escape_lines(what)}\n")

    def close(self) -> None:
        try:
            super().close()
        except OSError:  # what could not be written is still in the buffer
            self.failed = True


def get_logger(
    name: str = "devrun",
    log_file: str | os.PathLike[str] | None = None,
    log_level: int | str | None = None,
    file_mode: str = "a",
) -> logging.Logger:
    """The logger `name`, writing to the console and to `log_file`.

    Calling it again adds only what is missing. Rank 0 writes the file and logs from
    `log_level` on (None: as before, at first INFO); the other ranks log errors on the
    console. A child of a logger
    that was set up gets no handlers: its records reach those of the parent. With a
    log file, tracebacks go there and the console shows only their record's line.

    Raises:
        ConfigError: no such level, or the file cannot be written.
    """
    logger = logging.getLogger(name)
    main = is_main()
    if not main:
        logger.setLevel(logging.ERROR)
    elif log_level is not None or logger.level == logging.NOTSET:
        logger.setLevel(_level(logging.INFO if log_level is None else log_level))
    if _has_handlers(logger.parent):
        return logger
    if not any(isinstance(h, ConsoleHandler) for h in logger.handlers):
        console = ConsoleHandler()
        console.setFormatter(ConsoleFormatter())
        logger.addHandler(console)
        logger.propagate = False
    if log_file is not None and main:
        _add_file(logger, Path(log_file), file_mode)
    return logger


def close_logger(name: str = "devrun") -> None:
    """Undo `get_logger`: close and remove its handlers, let records propagate."""
    logger = logging.getLogger(name)
    for handler in [h for h in logger.handlers if _is_ours(h)]:
        logger.removeHandler(handler)
        handler.close()
        logger.propagate = True


def print_log(
    msg: object, logger: logging.Logger | str | None = None, level: int = logging.INFO
) -> None:
    """MMCV's helper: `msg` to stdout (None), nowhere ('silent'), or a logger.

    Raises:
        ConfigTypeError: `logger` is something else.
    """
    if logger is None:
        sys.stdout.write(f"{escape_controls(redact(str(msg)))}\n")
    elif isinstance(logger, logging.Logger):
        logger.log(level, msg)
    elif logger == "silent":
        return
    elif isinstance(logger, str):
        get_logger(logger).log(level, msg)
    else:
        raise ConfigTypeError(
            "logger must be a logging.Logger, a name, 'silent' or None, "
            f"got {type(logger).__name__}"
        )


@contextmanager
def quieted(level: int) -> Iterator[None]:
    """Within, records up to `level` and warnings of Python go unseen, ours too."""
    before = logging.root.manager.disable
    logging.disable(max(before, level))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


def _folded(line: str, width: int) -> str:
    """`line` in lines of at most `width`, but for words that are longer: paths."""
    return textwrap.fill(
        line.expandtabs(4),
        width,
        subsequent_indent=" " * MARGIN,
        drop_whitespace=True,
        break_long_words=False,
        break_on_hyphens=False,
    )


def _add_file(logger: logging.Logger, path: Path, mode: str) -> None:
    where = str(path.absolute())
    files = [h for h in logger.handlers if isinstance(h, logging.FileHandler)]
    if any(h.baseFilename == where for h in files):
        return
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handler = LogFile(path, mode, encoding="utf-8")
    except OSError as error:
        raise ConfigError(
            f"cannot write the log file {where!r}: {error.strerror}; choose another "
            "work_dir"
        ) from error
    handler.setFormatter(SafeFormatter())
    logger.addHandler(handler)
    for console in logger.handlers:
        if isinstance(console, ConsoleHandler):
            console.setFormatter(ConsoleFormatter(tracebacks=False))


def _is_ours(handler: logging.Handler) -> bool:
    return isinstance(handler.formatter, SafeFormatter)


def _has_handlers(logger: logging.Logger | None) -> bool:
    while logger is not None and logger.name != "root":
        if any(_is_ours(h) for h in logger.handlers):
            return True
        logger = logger.parent
    return False


def _level(level: int | str) -> int:
    if isinstance(level, int) and not isinstance(level, bool):
        return level
    names = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")
    if isinstance(level, str) and level.upper() in names:
        number: int = getattr(logging, level.upper())
        return number
    raise UnknownNameError(f"no log level {level!r}; {nearest(str(level), names)}")
