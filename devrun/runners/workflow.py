"""Which phase runs next, `[('train', 2), ('val', 1)]`, and on which batch."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from typing import Any

from devrun.data.prepared import PreparedLoader
from devrun.errors import ConfigError, ConfigTypeError, DataError, UnknownNameError
from devrun.run import RunState

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

    def steps(self, state: RunState) -> Iterator[tuple[str, Any]]:
        """Yield (mode, loader) until `state` is finished at the start of a round.

        A train phase ends early when training is finished; the other phases of that
        round still run.
        """
        while True:
            mode, times = self.flow[self.phase]
            finished = state.finished
            if finished and self.phase == self.repeat == 0:
                return
            if self.repeat >= times or (finished and mode == "train"):
                self.phase, self.repeat = (self.phase + 1) % len(self.flow), 0
                continue
            yield mode, self.loaders[self.phase]
            self.repeat += 1  # it is over

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

    Phases are `train`, `val`, and the methods of a user's subclass of `runner` whose
    first argument is called `data_loader`.

    Raises:
        UnknownNameError: names the mode and what there is.
    """
    for mode, _ in flow:
        if mode not in _PHASES and not _is_own_phase(runner, mode):
            raise UnknownNameError(
                f"{runner.__name__} has no workflow phase {mode!r}; accepted: "
                "'train', 'val' (a subclass adds one by a method with the argument "
                "data_loader)",
                key="workflow",
            )


def _is_own_phase(runner: type, name: str) -> bool:
    owners = [kind for kind in runner.__mro__ if name in vars(kind)]
    ours = any(kind.__module__.startswith("devrun.") for kind in owners)
    if ours or not owners or name.startswith("_"):
        return False
    method = vars(owners[0])[name]
    arguments = list(inspect.signature(method).parameters) if callable(method) else []
    return arguments[1:2] == ["data_loader"]


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


_NOTHING = object()


class IterLoader:
    """A data loader that starts its next epoch automatically.

    `epoch` counts the epochs completed, `done` the batches taken from this one.
    """

    def __init__(self, dataloader: Any) -> None:
        if not isinstance(dataloader, PreparedLoader):
            dataloader = PreparedLoader(dataloader)
        self._dataloader: PreparedLoader = dataloader
        self._iterator: Iterator[Any] | None = None
        self.epoch = 0
        self.done = 0

    def __getattr__(self, name: str) -> Any:
        """What else the loader inside has: `batch_size`, `sampler`, `explain`, ..."""
        return getattr(vars(self)["_dataloader"], name)

    def __len__(self) -> int:
        return len(self._dataloader)

    def set_epoch(self, epoch: int) -> None:
        """Go to the beginning of `epoch`, unless this is it."""
        if epoch != self.epoch:
            self.epoch = epoch
            self.start_at(0)

    def start_at(self, update: int) -> None:
        """Go to `update` of this epoch."""
        self.done, self._iterator = update, None

    def open(self) -> Iterator[Any]:
        """The iterator of the present epoch, which begins at `done`."""
        if self._iterator is None:
            self._dataloader.set_epoch(self.epoch)
            if self.done:
                self._dataloader.start_at(self.done)
            self._iterator = iter(self._dataloader)
        return self._iterator

    def __next__(self) -> Any:
        try:
            batch = next(self._iterator or self.open())
        except StopIteration:
            self.set_epoch(self.epoch + 1)
            batch = next(self.open(), _NOTHING)
            if batch is _NOTHING:
                raise DataError(
                    f"the data loader yielded nothing in epoch {self.epoch + 1}: one "
                    "that is read once cannot start again; give it a new iterator in "
                    "each __iter__"
                ) from None
        self.done += 1
        return batch

    def __iter__(self) -> Iterator[Any]:
        return self
