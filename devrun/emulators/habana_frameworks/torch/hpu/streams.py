"""Streams: numbers only, since work on the emulated device is done at once."""

from __future__ import annotations

import itertools
from typing import Any

import torch

from habana_frameworks._emulation.dispatch import sync
from habana_frameworks.torch.hpu.events import Event

_numbers = itertools.count()


class Stream:
    """A queue of work; everything in it has finished already."""

    def __init__(self, device: Any = None, priority: int = 0, **kwargs: Any) -> None:
        self.device = torch.device("hpu", 0)
        self.priority = priority
        self.stream_id = next(_numbers)
        self.hpu_stream = self.stream_id
        self.is_capture = False

    def synchronize(self) -> None:
        """Wait for the work in it."""
        sync("stream synchronize")

    def query(self) -> bool:
        """Whether the work is done."""
        return True

    def wait_event(self, event: Event) -> None:
        """Let later work wait for `event`."""

    def wait_stream(self, stream: Stream) -> None:
        """Let later work wait for another stream."""

    def record_event(self, event: Event | None = None) -> Event:
        """Record an event, new unless given."""
        event = event or Event()
        event.record(self)
        return event

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Stream) and other.stream_id == self.stream_id

    def __hash__(self) -> int:
        return hash(("hpu stream", self.stream_id))

    def __repr__(self) -> str:
        return f"<torch.hpu.Stream device={self.device} id={self.stream_id}>"


_default = Stream()
_current = [_default]


def default_stream(device: Any = None) -> Stream:
    """The stream that work goes to unless another is chosen."""
    return _default


def current_stream(device: Any = None) -> Stream:
    """The stream chosen now."""
    return _current[-1]


def set_stream(stream: Stream | None) -> None:
    """Choose a stream; None changes nothing."""
    if stream is not None:
        _current[-1] = stream


class StreamContext:
    """Inside, `stream` is chosen; None changes nothing."""

    def __init__(self, stream: Stream | None) -> None:
        self.stream = stream

    def __enter__(self) -> None:
        _current.append(self.stream or current_stream())

    def __exit__(self, *exc: object) -> None:
        _current.pop()


def stream(stream: Stream | None) -> StreamContext:
    """A context manager that chooses `stream`."""
    return StreamContext(stream)


def record_stream(tensor: torch.Tensor, stream: Stream) -> None:
    """Keep the tensor's memory for `stream`; nothing to do here."""
