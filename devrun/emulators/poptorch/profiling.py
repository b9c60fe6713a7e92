"""Tracepoints. PopVision is not modelled: a channel times nothing and says so."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from poptorch._options_base import check


class Channel:
    """A named group of tracepoints."""

    def __init__(self, name: str) -> None:
        check(isinstance(name, str), "A channel's name is a string")
        self._name = name

    @contextmanager
    def tracepoint(self, name: str) -> Iterator[None]:
        """Mark what is inside; nothing is written."""
        yield

    def instrument(self, obj: Any, *methods: str) -> Any:
        """Mark calls of methods, which must exist; returns the object."""
        for method in methods:
            check(
                callable(getattr(obj, method, None)),
                f"{type(obj).__name__} has no method {method}",
            )
        return obj
