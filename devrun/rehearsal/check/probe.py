"""`Probe`: one who looks at a rehearsal and notes what it finds."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from importlib import import_module
from typing import Any

from devrun.blame import cause_of
from devrun.hooks.base import Hook
from devrun.rehearsal.check.findings import Finding
from devrun.rehearsal.check.notebook import Notebook
from devrun.rehearsal.check.request import Request
from devrun.runners.training import Training

_HERE = __package__
_ALWAYS = (f"{_HERE}.hard_wired:HardWired",)
"""`module:Class` of probes without which a rehearsal may not get far."""
_PROBES: dict[str, tuple[str, ...]] = {
    "": (
        f"{_HERE}.loading:LoadingProbe",
        f"{_HERE}.training:HooksProbe",
        f"{_HERE}.training:GradientsProbe",
        f"{_HERE}.training:SavingProbe",
        f"{_HERE}.last_batch:LastBatch",
    ),
    "cuda": (
        f"{_HERE}.cuda.steps:Steps",
        f"{_HERE}.cuda.memory:Memory",
        f"{_HERE}.cuda.compiles:Compiles",
    ),
    "hpu": (
        f"{_HERE}.dense:DenseBuffers",
        f"{_HERE}.hpu.probe:HPUProbe",
        f"{_HERE}.batches:BatchShapes",
    ),
    "ipu": (
        f"{_HERE}.dense:DenseBuffers",
        f"{_HERE}.ipu.compiling:Compiling",
        f"{_HERE}.ipu.arithmetic:Arithmetic",
        f"{_HERE}.ipu.shapes:Shapes",
        f"{_HERE}.ipu.graphs:Graphs",
    ),
}
"""Device -> `module:Class` of its probes; the empty name has those of every device."""


class Probe(Hook):
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

    def after(self, training: Training) -> Iterable[Finding]:
        """What it found, once the run is over, or broke."""
        return ()

    def finish(self, training: Training) -> None:
        """Note what `after` gives, as far as it gets."""
        for finding in self.after(training):
            self.note.found(finding)


def probes(request: Request, note: Notebook) -> list[Probe]:
    """Those of the device, and those of every device in the first rehearsal."""
    names = _PROBES.get(request.device, ())
    if request.first:
        names = (*_PROBES[""], *names)
    return [_load(name)(request, note) for name in (*_ALWAYS, *names)]


def _load(name: str) -> type[Probe]:
    module, _, kind = name.partition(":")
    found: type[Probe] = getattr(import_module(module), kind)
    return found


def is_ours(hook: Hook) -> bool:
    """Whether it is here for the rehearsal alone."""
    return type(hook).__module__.startswith(str(_HERE))


def safely(note: Notebook, call: Callable[..., Any], *args: Any) -> Any:
    """What `call` returns; a probe that fails is noted, and the rest goes on."""
    try:
        return call(*args)
    except Exception as error:  # noqa: BLE001 - of one probe, which is said
        name = type(getattr(call, "__self__", call)).__name__
        note.found(
            Finding(
                severity="advice",
                kind="not checked",
                what=name,
                why=f"this part of the check failed: {cause_of(error)}",
                remedy="report it as a defect of devrun, with the config",
            )
        )
        return None
