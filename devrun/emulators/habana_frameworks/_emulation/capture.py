"""What a HPU graph records and how it is replayed.

A recording keeps each operator with the host tensors it read and wrote. A replay
runs them again and writes into the very same results, hence static memory.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from habana_frameworks._emulation.streams import GENERATOR, DeviceStream
from habana_frameworks._emulation.support import paired


class Recording:
    """The operators between `begin` and `end`, and the memory they live in."""

    def __init__(self) -> None:
        self.steps: list[tuple[Any, list[Any], dict[str, Any], Any, bool]] = []
        self.results: list[Any] = []

    def record(
        self,
        plan: Any,
        args: list[Any],
        kwargs: dict[str, Any],
        out: Any,
        results: list[Any],
    ) -> None:
        """Keep one operator; `results` stay alive, as a graph's memory does."""
        in_place = plan.is_view or bool(plan.mutated)
        self.steps.append((plan, args, kwargs, out, in_place))
        self.results.extend(results)

    def replay(self) -> None:
        """Run everything again into the same memory."""
        for plan, args, kwargs, out, in_place in self.steps:
            if plan.draws and not plan.generator:
                with DeviceStream():
                    new = plan.op(*args, **kwargs)
            else:
                new = plan.op(*args, **kwargs)
            if not in_place:
                _write(out, new)
        for tensor in self.results:
            tensor._memory.graph = 0
            tensor._graph = 0

    def clear(self) -> None:
        """Give the memory back."""
        self.steps.clear()
        self.results.clear()


def _write(out: Any, new: Any) -> None:
    if isinstance(out, Tensor):
        if out.shape != new.shape:
            raise RuntimeError(
                f"a replay made shape {tuple(new.shape)} where the recording has "
                f"{tuple(out.shape)}: dynamic shapes are not supported in hpu graphs"
            )
        out.copy_(new)
    elif isinstance(out, (list, tuple)):
        for one, other in paired(out, new):
            _write(one, other)


class Capture:
    """The one capture that may be under way in a process."""

    def __init__(self) -> None:
        self.active: Recording | None = None
        self._random: Tensor | None = None

    def begin(self) -> Recording:
        """Start recording; RuntimeError while another one runs."""
        if self.active is not None:
            raise RuntimeError("one hpu graph capture at a time: end the other first")
        self.active = Recording()
        self._random = GENERATOR.get_state()
        return self.active

    def end(self) -> None:
        """Stop, and put the random stream back: the first replay draws the same."""
        self.active = None
        if self._random is not None:
            GENERATOR.set_state(self._random)
            self._random = None


CAPTURE = Capture()
