"""Which phase runs next: `[('train', 2), ('val', 1)]`, and a run's position in it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from devrun.errors import ConfigError, ConfigTypeError, UnknownNameError

_PHASES = ("train", "val")


class Workflow:
    """Rounds of (mode, times) phases with one loader each.

    The cursor (phase, repeat) names the phase in progress, so that a killed run goes
    on in the same place of the round.
    """

    def __init__(self, flow: Sequence[Any], loaders: Sequence[Any]) -> None:
        if not isinstance(loaders, (list, tuple)):
            raise ConfigTypeError(
                f"data_loaders must be a list, got {type(loaders).__name__}"
            )
        self.flow = [_phase(entry) for entry in flow]
        if len(self.flow) != len(loaders):
            raise ConfigError(
                f"workflow has {len(self.flow)} phases but {len(loaders)} data "
                "loaders were given; give one loader for each phase"
            )
        if all(mode == "val" or times == 0 for mode, times in self.flow):
            raise ConfigError(
                f"workflow {self.flow} never trains, so it would never end; add a "
                "('train', n) phase, or use the evaluation hook",
                key="workflow",
            )
        self.loaders = list(loaders)
        self.phase = 0
        self.repeat = 0

    def steps(self, finished: Callable[[], bool]) -> Iterator[tuple[str, Any]]:
        """Yield (mode, loader) until `finished()` holds at the start of a round.

        A train phase ends early when training is finished; the other phases of that
        round still run.
        """
        while not (self.phase == self.repeat == 0 and finished()):
            mode, times = self.flow[self.phase]
            if self.repeat >= times or (mode == "train" and finished()):
                self.phase, self.repeat = (self.phase + 1) % len(self.flow), 0
                continue
            yield mode, self.loaders[self.phase]
            self.advance()

    def advance(self) -> None:
        """The repeat in progress is over."""
        self.repeat += 1

    def position(self, *, completed: bool) -> list[int]:
        """[phase, repeat] that comes next; `completed` when the present one is over."""
        repeat = self.repeat + completed
        if repeat < self.flow[self.phase][1]:
            return [self.phase, repeat]
        return [(self.phase + 1) % len(self.flow), 0]

    def seek(self, position: Sequence[int]) -> bool:
        """Go to a saved position; False when this workflow has no such place."""
        phase, repeat = position
        if phase >= len(self.flow) or repeat > self.flow[phase][1]:
            return False
        self.phase, self.repeat = phase, repeat
        return True


def check_phases(flow: Sequence[tuple[str, int]], runner: type) -> None:
    """Refuse a mode that is no phase: a config must not call any method of a runner.

    Phases are `train`, `val`, and what a user's subclass of `runner` defines as one:
    a public method of its own whose first argument is called `data_loader`.

    Raises:
        UnknownNameError: names the mode and what there is.
    """
    ours = [kind for kind in runner.__mro__ if _is_ours(kind)]
    own = {
        name
        for kind in runner.__mro__
        if kind not in ours
        for name, method in vars(kind).items()
        if not name.startswith("_") and not any(hasattr(k, name) for k in ours)
        if inspect.isfunction(method) and _takes_a_loader(method)
    }
    for mode, _ in flow:
        if mode not in (*_PHASES, *own):
            raise UnknownNameError(
                f"{runner.__name__} has no workflow phase {mode!r}; accepted: "
                f"{', '.join(map(repr, (*_PHASES, *sorted(own))))} (a subclass adds "
                "one by a method with the argument data_loader)",
                key="workflow",
            )


def _is_ours(kind: type) -> bool:
    return kind is object or kind.__module__.partition(".")[0] == "devrun"


def _takes_a_loader(method: Any) -> bool:
    return list(inspect.signature(method).parameters)[1:2] == ["data_loader"]


def _phase(entry: Any) -> tuple[str, int]:
    if not isinstance(entry, (tuple, list)) or len(entry) != 2:
        raise ConfigTypeError(
            f"a workflow phase is a pair such as ('train', 1), got {entry!r}"
        )
    mode, times = entry
    if not isinstance(mode, str):
        raise ConfigTypeError(f"the mode of a workflow phase is a str, got {mode!r}")
    if not isinstance(times, int) or isinstance(times, bool) or times < 0:
        raise ConfigError(f"the count of phase {mode!r} is 0 or more, got {times!r}")
    return mode, times
