"""`Probe`: one who looks at a rehearsal and notes what it finds; `Probes`: those of a
device."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Protocol

from devrun.blame import cause_of
from devrun.hooks.base import Hook
from devrun.parallel.strategy import optimizers_in
from devrun.probes.finding import Finding
from devrun.probes.notebook import Notebook
from devrun.probes.request import Request
from devrun.probes.sites import defined


class Training(Protocol):
    """What is rehearsed: a runner with everything registered, and its loaders."""

    runner: Any
    loaders: list[Any]
    cfg: Mapping[str, Any]


class Watching(Hook):
    """A hook that is here for a rehearsal alone."""


class Probe(Watching):
    """All methods do nothing by default; each may note findings and facts.

    One that looks at updates overrides stages of a hook, and registers itself in
    `built`.
    """

    def __init__(self, request: Request, note: Notebook) -> None:
        self.request = request
        self.note = note

    def changes(self, cfg: Any) -> dict[str, Any]:
        """Keys of the config that must be otherwise for what it looks at."""
        return {}

    def least(self, cfg: Any) -> dict[str, int]:
        """Keys of sizes that may not be made smaller than this."""
        return {}

    def before(self, cfg: Any) -> None:
        """Before anything is built; `cfg` is the user's, with no size reduced."""

    def built(self, training: Training) -> None:
        """The training is built, and not begun; hooks may be registered."""

    def throughout(self) -> AbstractContextManager[Any]:
        """Around all of it: the imports, each build, the run and the resume."""
        return nullcontext()

    def getting_past(self) -> AbstractContextManager[Any]:
        """Around each run: what replaces or repairs what would break."""
        return nullcontext()

    def watching(self) -> AbstractContextManager[Any]:
        """Around the first run: its updates, evaluations and saves."""
        return nullcontext()

    def work_around(self, error: Exception, cfg: Any) -> dict[str, Any] | None:
        """Changes of the config with which the run gets past `error`; None: unknown.

        Whoever returns some has noted what broke.
        """
        return None

    def follows(self, error: Exception) -> bool:
        """Whether `error` comes of what it has found before."""
        return False

    def after(self, training: Training) -> Iterable[Finding]:
        """What it found, once the run is over, or broke."""
        return ()

    def finish(self, training: Training) -> None:
        """Note what `after` gives, as far as it gets."""
        for finding in self.after(training):
            self.note.found(finding)


class ProgramProbe(ABC):
    """One who looks at a program of the user's own while it runs on an emulator.

    Args:
        script: the program's file.
        memory: bytes of the device; None where nobody said it.
    """

    torch_release = "2.4"
    """The oldest on which its emulator runs programs."""

    @abstractmethod
    def __init__(self, note: Notebook, script: str, memory: int | None) -> None: ...

    def getting_past(self) -> AbstractContextManager[Any]:
        """Around the program: what replaces or repairs what would break."""
        return nullcontext()

    @abstractmethod
    def found(self) -> None:
        """Note what was seen so far; it may come again."""


@dataclass(frozen=True)
class Probes:
    """What an adapter brings to rehearsals for its device.

    Attributes:
        of_config: made anew for each rehearsal of a config.
        of_program: where programs can be run on an emulator of the device.
        modes: of the device, which differ in what breaks and what is slow.
        seen_from_cpu: its rehearsals run on the CPU, also where it is here.
        torch_device: on which torch has the tensors of a rehearsal.
    """

    of_config: tuple[type[Probe], ...] = ()
    of_program: type[ProgramProbe] | None = None
    modes: tuple[str, ...] = ()
    seen_from_cpu: bool = False
    torch_device: str = "cpu"


def own_hooks(runner: Any) -> list[Hook]:
    """Those that are not here for the rehearsal alone."""
    return [hook for hook in runner.hooks if not isinstance(hook, Watching)]


def own_parts(runner: Any) -> list[Any]:
    """These, and optimizers of the user's own classes."""
    optimizers = optimizers_in(runner.optimizer)
    return [*own_hooks(runner), *(one for one in optimizers if defined(type(one)))]


def safely(note: Notebook, call: Callable[..., Any], *args: Any) -> Any:
    """What `call` returns; a probe that fails is noted, and the rest goes on."""
    try:
        return call(*args)
    except Exception as error:  # noqa: BLE001 - of one probe, which is said
        name = type(getattr(call, "__self__", call)).__name__
        why = f"this part of the check failed: {cause_of(error)}"
        remedy = "report it as a defect of devrun, with the config"
        note.found(Finding("advice", "not checked", name, why, remedy))
        return None
