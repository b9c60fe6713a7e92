"""Whether weights may be downloaded: only where the user says so."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_allowed: ContextVar[bool] = ContextVar("downloads allowed", default=False)


@contextmanager
def downloads_allowed(allowed: bool = True) -> Iterator[None]:
    """Within: `http(s)://` and `open-mmlab://` name weights; `--allow-download`."""
    token = _allowed.set(allowed)
    try:
        yield
    finally:
        _allowed.reset(token)


def may_download() -> bool:
    """Whether this is within `downloads_allowed`."""
    return _allowed.get()
