"""Whether the network may be used: only where the user says so.

Weights with an address are asked about (`may_download`). What a config builds (models,
data sets, transforms) may also come from packages that fetch things on their own, for
arguments such as `pretrained: true` or `download: true`. While it is built, this
process opens no connection.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from devrun.errors import ConfigError, DevrunError

_allowed: ContextVar[bool] = ContextVar("downloads allowed", default=False)
_HOSTS = {"socket.getaddrinfo": 0, "socket.gethostbyname": 0}
"""Event of a look-up -> which of its arguments is the host."""
_ADDRESSES = ("socket.connect", "socket.sendto", "socket.sendmsg")
"""Events whose second argument is an address."""


class _Door:
    """The way out of this process: how often it was closed, and who stood before it.

    Of all threads, since packages download in threads of their own.
    """

    def __init__(self) -> None:
        self.closed = 0
        self.refused: list[str] = []
        self.watched = False
        self.lock = threading.Lock()

    def close(self) -> None:
        with self.lock:
            if not self.watched:
                sys.addaudithook(self._watch)
                self.watched = True
            self.closed += 1

    def open(self) -> None:
        with self.lock:
            self.closed -= 1

    def _watch(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self.closed and event.startswith("socket."):
            host = _host(event, arguments)
            if host is not None:
                self.refused.append(host)
                # an OSError: what has the file in its cache goes on with that
                raise ConnectionRefusedError(_asked(host))


def _host(event: str, arguments: tuple[Any, ...]) -> str | None:
    """What an event of a socket is about to reach; None where that is this machine's.

    An address of this machine counts as well: a proxy may listen there.
    """
    if event in _HOSTS:
        return str(arguments[_HOSTS[event]])
    address = arguments[1] if event in _ADDRESSES else None
    return str(address[0]) if isinstance(address, tuple) and address else None


def _asked(host: str) -> str:
    return (
        f"asks for {host} on the network: give --allow-download (in code, "
        "`devrun.network.downloads_allowed()`), or download it first and name the file "
        "or folder"
    )


_door = _Door()


@contextmanager
def downloads_allowed(allowed: bool = True) -> Iterator[None]:
    """Within, weights may have an address, and what is built may download."""
    token = _allowed.set(allowed)
    try:
        yield
    finally:
        _allowed.reset(token)


def may_download() -> bool:
    """Whether this is within `downloads_allowed`."""
    return _allowed.get()


@contextmanager
def network_closed() -> Iterator[None]:
    """Within, this process connects to nothing, unless downloads are allowed.

    Raises:
        ConfigError: something failed within that had asked for the network.
    """
    if may_download():
        yield
        return
    before = len(_door.refused)
    _door.close()
    try:
        yield
    except DevrunError:
        raise
    except Exception as error:
        if len(_door.refused) == before:
            raise
        raise ConfigError(_asked(_door.refused[before])) from error
    finally:
        _door.open()
