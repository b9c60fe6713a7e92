"""The page of runs in progress, for a browser on this machine."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Lock
from typing import Any
from urllib.parse import urlsplit

from devrun.errors import ConfigError, DevrunError
from devrun.rehearsal.report import page
from devrun.text import escape

INTERVAL = 5.0
"""Seconds between two looks of the page at the runs."""


def serve(
    data: Callable[[], Mapping[str, Any]], port: int, say: Callable[[str], None]
) -> int:
    """Answer until Ctrl-C; 0 then.

    Args:
        data: reads the runs; called for each answer.
        port: of the loopback address; 0 takes a free one.
        say: told the address.

    Raises:
        ConfigError: the port is not to be had.
    """
    data()  # what is wrong with the runs is said before a browser asks

    reading = Lock()  # many questions at once cost one reading at a time

    class Handler(BaseHTTPRequestHandler):
        timeout = 10.0

        def do_GET(self) -> None:
            if not _is_here(self.headers.get("Host", "")):
                self.send_error(421, "this is for the browser of its own machine")
                return
            if self.path not in ("/", "/version"):
                self.send_error(404)
                return
            try:
                with reading:
                    found = data()
            except DevrunError as error:
                self.send_error(503, escape(error))
                return
            version = _version(found)
            text = version
            if self.path == "/":
                text = page(found, version=version, follow=INTERVAL)
            body = text.encode()
            self.send_response(200)
            kind = "html" if self.path == "/" else "plain"
            self.send_header("Content-Type", f"text/{kind}; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args: Any) -> None:
            """Nothing: requests are not news."""

    try:
        server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    except (OSError, OverflowError) as error:
        raise ConfigError(
            f"--port {port} cannot be used ({error}); choose another, or 0 for any"
        ) from error
    with server:
        say(f"http://127.0.0.1:{server.server_port}/  (Ctrl-C ends it)")
        with suppress(KeyboardInterrupt):
            server.serve_forever()
    return 0


def _is_here(host: str) -> bool:
    """Whether it names this machine: a name of elsewhere may have been given its
    address, so that the page of another site could read the answers (DNS rebinding).

    Any port, as of a tunnel.
    """
    try:
        return urlsplit(f"//{host}").hostname in ("127.0.0.1", "localhost", "::1")
    except ValueError:
        return False


def _version(data: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()
