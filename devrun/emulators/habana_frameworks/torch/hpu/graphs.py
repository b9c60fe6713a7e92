"""HPU graphs: record once, replay without the host. Lazy mode only."""

from __future__ import annotations

import gc
from typing import Any

from torch import Tensor

from habana_frameworks._emulation.capture import CAPTURE, Recording
from habana_frameworks._emulation.dispatch import sync
from habana_frameworks._emulation.lazy import flush
from habana_frameworks._emulation.recorder import RECORDER
from habana_frameworks._emulation.support import paired
from habana_frameworks.torch.hpu.graph_callables import make_graphed_callables
from habana_frameworks.torch.hpu.graph_modules import (
    ModuleCacher,
    TensorPacker,
    wrap_in_hpu_graph,
)
from habana_frameworks.torch.hpu.streams import Stream, StreamContext

__all__ = [
    "HPUGraph",
    "ModuleCacher",
    "TensorPacker",
    "graph",
    "is_current_stream_capturing",
    "make_graphed_callables",
    "wrap_in_hpu_graph",
]


class HPUGraph:
    """A recording of device work with static memory for its inputs and outputs."""

    def __init__(self) -> None:
        self._recording: Recording | None = None
        self._inputs: list[Tensor] = []
        self._outputs: list[Tensor] = []

    def capture_begin(self, dry_run: bool = False) -> None:
        """Record from here on; RuntimeError while another capture runs."""
        flush("capture")
        self._recording = CAPTURE.begin()

    def capture_end(self) -> None:
        """Stop recording; the recorded work was compiled."""
        CAPTURE.end()
        flush("capture")

    def replay(self, asynchronous: bool = False) -> None:
        """Run the recorded work on what its inputs hold now: one launch."""
        if self._recording is None:
            raise RuntimeError("replay of a hpu graph that holds no capture")
        flush("graph replay")
        RECORDER.totals["launch"] += 1
        RECORDER.totals["graph_replay"] += 1
        self._recording.replay()

    def replayV2(  # noqa: N802 - the SDK's name
        self,
        static_tlist: list[Tensor],
        tlist: list[Tensor],
        asynchronous: bool = False,
    ) -> None:
        """Copy `tlist` into the inputs `static_tlist`, then replay."""
        for static, given in paired(static_tlist, tlist):
            static.copy_(given)
        self.replay(asynchronous)

    def replayV3(  # noqa: N802 - the SDK's name
        self,
        tlistI: list[Tensor],  # noqa: N803
        asynchronous: bool = False,
    ) -> None:
        """As `replayV2`, into the inputs that were marked."""
        self.replayV2(self._inputs, list(tlistI), asynchronous)

    def mark_user_inputs(self, static_tlist: list[Tensor]) -> None:
        """Name the inputs that `replayV3` fills."""
        self._inputs = list(static_tlist)

    def mark_user_outputs(self, static_tlist: list[Tensor]) -> None:
        """Name the outputs the user keeps."""
        self._outputs = list(static_tlist)

    def clear_inputs(self) -> None:
        """Forget inputs that are outputs through in-place updates; nothing here."""

    def reset(self) -> None:
        """Give the memory back."""
        if self._recording is not None:
            self._recording.clear()
            self._recording = None


class graph:  # noqa: N801 - the SDK's name
    """Context manager: what runs inside is recorded into `hpu_graph`."""

    def __init__(
        self, hpu_graph: HPUGraph, stream: Stream | None = None, dry_run: bool = False
    ) -> None:
        self.hpu_graph = hpu_graph
        self.capture_stream = stream or Stream()
        self.dry_run = dry_run
        self._chosen = StreamContext(self.capture_stream)

    def __enter__(self) -> None:
        sync("graph capture")
        gc.collect()
        self._chosen.__enter__()
        self.capture_stream.is_capture = True
        self.hpu_graph.capture_begin(self.dry_run)

    def __exit__(self, *exc: Any) -> None:
        self.hpu_graph.capture_end()
        self.capture_stream.is_capture = False
        self._chosen.__exit__(*exc)


def is_current_stream_capturing() -> bool:
    """Whether a capture is under way."""
    return CAPTURE.active is not None
