"""Stand-ins for CUDA's streams and events, which note the order of what is done there.

What a stream computes is ready for another one, or for the host, once that has waited
for it: https://docs.pytorch.org/docs/stable/notes/cuda.html#cuda-streams.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, NamedTuple

from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from devrun.probes.origins import storage_of


class Idle:
    """On which nothing happens."""

    def __init__(self, *_: Any, **__: Any) -> None: ...

    def __getattr__(self, name: str) -> Any:
        return lambda *_, **__: nullcontext()

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: Any) -> None: ...


class Stream(Idle):
    """A stream, and until when it has waited for the others."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self.waited: dict[Any, int] = {}
        CLOCK.start()

    def wait_stream(self, other: Any) -> None:
        self.wait_event(other.record_event())

    def wait_event(self, event: Any) -> None:
        for stream, time in event.waited.items():
            self.waited[stream] = max(time, self.waited.get(stream, 0))

    def record_event(self, event: Any = None) -> Any:
        event = event or Event()
        event.waited = {**self.waited, self: CLOCK.now}
        return event

    def synchronize(self) -> None:
        CLOCK.wait(self)


class Event(Idle):
    """A point of a stream, or of none that is known."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self.waited: dict[Any, int] = {}

    def record(self, stream: Any = None) -> None:
        (stream or CLOCK.current).record_event(self)

    def wait(self, stream: Any = None) -> None:
        (stream or CLOCK.current).wait_event(self)

    def synchronize(self) -> None:
        CLOCK.host.wait_event(self)

    def elapsed_time(self, _: Any) -> float:
        return 1.0


class Written(NamedTuple):
    """What wrote a tensor last."""

    storage: StorageWeakRef
    stream: Stream
    time: int
    site: str | None


class Clock:
    """Which stream wrote what, and when."""

    def __init__(self) -> None:
        self.now = 0
        self.active = False
        """Whether there is more than one stream, or a copy that the host has to wait
        for: without, all comes in its order."""
        self._written: dict[int, Written] = {}

    def begin(self) -> None:
        self.host, self.current = Stream(), Stream()
        self.default, self.active = self.current, False

    def start(self) -> None:
        self.active = True

    def on(self, stream: Any) -> AbstractContextManager[Any]:
        """`torch.cuda.stream(stream)`; None changes nothing."""
        return self._on(stream) if isinstance(stream, Stream) else nullcontext()

    def go_on_in(self, stream: Any) -> None:
        """`torch.cuda.set_stream(stream)`."""
        self.current = stream

    @contextmanager
    def _on(self, stream: Any) -> Any:
        before, self.current = self.current, stream
        try:
            yield stream
        finally:
            self.current = before

    def wait(self, stream: Any = None) -> None:
        """The host waits for `stream`; for what is current, if none is given."""
        self.host.wait_stream(stream or self.current)

    def wait_for_all(self) -> None:
        for one in list(self._written.values()):
            self.wait(one.stream)

    def write(self, tensors: Iterable[Tensor], site: str | None) -> None:
        """The current stream writes them, as `site` asked it to."""
        self.now += 1
        for tensor in tensors:
            storage = storage_of(tensor)
            if storage is not None:
                row = StorageWeakRef(storage), self.current, self.now, site
                self._written[storage._cdata] = Written(*row)

    def early(self, tensor: Tensor, host: bool) -> Written | None:
        """What wrote `tensor`, if it is read before that is sure to be done."""
        storage = storage_of(tensor)
        found = None if storage is None else self._written.get(storage._cdata)
        if found is None or found.storage.expired():
            return None
        reader = self.host if host else self.current
        seen = max(one.waited.get(found.stream, 0) for one in (reader, self.host))
        return None if reader is found.stream or found.time <= seen else found


CLOCK = Clock()
"""Of the rehearsal in this process."""
CLOCK.begin()
