"""One rehearsal: train, evaluate, save and resume, and get past what breaks."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Mapping
from contextlib import ExitStack, closing, suppress
from copy import deepcopy
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import Any
from unittest.mock import patch

from devrun.config.imports import import_custom, import_named, search_folders
from devrun.config.tree import where
from devrun.errors import (
    ConfigError,
    DeviceUnavailableError,
    DevrunError,
    UnsupportedFeatureError,
)
from devrun.probes.finding import Finding
from devrun.probes.hard_wired import HardWired
from devrun.probes.notebook import Notebook
from devrun.probes.probe import Probe, safely
from devrun.probes.request import Grants, Request
from devrun.probes.workarounds import apply, refusal
from devrun.rehearsal.check.fresh import Fresh
from devrun.rehearsal.check.goes_on import GoesOn
from devrun.rehearsal.check.gradient_path import Diverges, GradientsProbe, untrained
from devrun.rehearsal.check.graph_faults import (
    LATE,
    AnomalyMode,
    KeptGraphs,
    LateParameters,
    StaysEvaluating,
)
from devrun.rehearsal.check.last_batch import LastBatch
from devrun.rehearsal.check.requests import bring, probes_of
from devrun.rehearsal.check.resume import Updates, begins_late, counters, differences
from devrun.runners.training import Training
from devrun.runners.trial import build_short, change, shorten

Build = Callable[[], Training]
_KEPT = ("once", "frozen", "lost write")
"""Kinds of what a graph goes on with as it was."""
MOST = 12
"""Things that break and are got past, one after another."""


def rehearse(request: Request, note: Notebook, seconds: float = 600.0) -> None:
    """Run it, in so many seconds, and write into `note` what is found."""
    cfg = request.cfg  # of this process alone
    probing = _probes(request, note)
    compiles = request.mode == "compile" or bool(cfg.get("compile"))
    going = GoesOn(note, seconds, partial(_follows, probing), compiles)
    with ExitStack() as whole:
        for probe in probing:
            whole.enter_context(probe.throughout())
        with note.stage("the imports"):
            try:
                import_modules(cfg, request.grants, note)
            except ConfigError as error:
                note.found(replace(refusal(error), kind="import"))
                note.refused(error)
                return
        for probe in probing:
            safely(note, probe.before, cfg)
        folder = whole.enter_context(tempfile.TemporaryDirectory(dir=note.folder))
        going.reduced = _shorten(cfg, request, note, probing, folder)
        for probe in probing:
            change(cfg, safely(note, probe.changes, cfg) or {})
        build = partial(_built, cfg, request, Fresh())
        first = _trained(cfg, build, note, probing, going)
        if request.resumes and first is not None and first.saved is not None:
            with note.stage("the resume"):
                _resume(cfg, build, note, probing, going, first)
    note.done()


def _probes(request: Request, note: Notebook) -> list[Probe]:
    """Those of the device, and in the first rehearsal those of every device."""
    kinds: list[type[Probe]] = [HardWired, KeptGraphs, LateParameters, Diverges]
    if request.first:
        kinds += GradientsProbe, LastBatch, AnomalyMode, StaysEvaluating
    bring([request.device], request.grants)
    kinds += probes_of(request.device).of_config
    return [kind(request, note) for kind in kinds]


def _shorten(
    cfg: Any, request: Request, note: Notebook, probing: list[Probe], folder: str
) -> dict[str, int]:
    """Two rounds of `steps` updates; a run that resumes between them has the second.

    What would take too long is made smaller, but not below what a probe needs.

    Returns:
        Key -> size of what was made smaller.
    """
    least: dict[str, int] = {}
    for probe in probing:
        least.update(safely(note, probe.least, cfg) or {})
    reduced = shorten(
        cfg,
        request.steps * 2,
        evaluate=2,
        save=True,
        samples=request.samples,
        least=least,
        device=request.section,
        work_dir=folder,
    )
    for key, (less, size) in reduced.items():
        note.reduced(key, less, size)
    if cfg.get("seed") is None:
        change(cfg, {"seed": 0})
    own = cfg.get(request.device)
    if request.mode and isinstance(own, Mapping) and "mode" in own:
        change(cfg, {f"{request.device}.mode": request.mode})
    return {key: size for key, (_, size) in reduced.items()}


def import_modules(cfg: Any, grants: Grants, note: Notebook) -> None:
    """What the user and then the config imports; each that fails is left out."""
    import_named(grants.imports, grants.file)
    wish = cfg.get("custom_imports")
    names = wish.get("imports") if isinstance(wish, dict) else None
    folders = search_folders(grants.file) if grants.everything else ()
    listed = [names] if isinstance(names, str) else list(names or [])
    good = []
    for name in listed:
        alone = deepcopy(cfg)
        alone.merge_from_dict({"custom_imports.imports": [name]})
        try:
            import_custom(alone, folders)
            good.append(name)
        except ConfigError as error:
            fix = {"custom_imports.imports": [one for one in listed if one != name]}
            origin = where(wish, "imports").origin
            remedy = f"put the folder of {name} on PYTHONPATH, or remove it"
            site = str(origin) if origin else None
            row = ("import", name, refusal(error).why, remedy, site)
            note.found(Finding("breaks", *row, fix=fix))
    if len(good) < len(listed):
        cfg.merge_from_dict({"custom_imports.imports": good})


def _trained(
    cfg: Any, build: Build, note: Notebook, probing: list[Probe], going: GoesOn
) -> Updates | None:
    """The updates of a whole run; what breaks is left out and it begins again."""
    for _ in range(MOST):
        training: Training | None = None
        try:
            with note.stage("the build"):
                training = build()
            updates = Updates(training)
            with closing(training.runner):
                training.runner.register_hook(updates)
                for probe in probing:
                    safely(note, probe.built, training)
                with note.stage("the training"), ExitStack() as watches:
                    for probe in probing:
                        watches.enter_context(probe.getting_past())
                        watches.enter_context(probe.watching())
                    watches.enter_context(going.around(training))
                    training.run()
                for probe in probing:
                    safely(note, probe.finish, training)
                if updates.trains_nothing and not note.breaks:
                    untrained(note, training, updates.batch)
                return updates
        except Exception as error:  # noqa: BLE001 - the user's own too: a finding
            if training is not None:
                for probe in probing:
                    safely(note, probe.finish, training)
            elif going.renews(error):
                continue
            changes = _whole(error, note, going) or _around(error, cfg, note, probing)
            if changes is None:
                return None
            apply(cfg, changes)
    return None


def _whole(error: Exception, note: Notebook, going: GoesOn) -> dict[str, int]:
    """The sizes that the user's code has too, which may not be made smaller."""
    sizes = going.whole(error)
    for key, size in sizes.items():
        note.reduced(key, size, size)
        del going.reduced[key]
    return sizes


def _around(
    error: Exception, cfg: Any, note: Notebook, probing: list[Probe]
) -> dict[str, Any] | None:
    for probe in probing:
        changes: dict[str, Any] | None = safely(note, probe.work_around, error, cfg)
        if changes is not None:
            return changes
    found = refusal(error, note.seen)
    if _follows(probing, error):
        return None  # it comes of what was found already
    note.found(found)
    # what this device alone cannot do says nothing of the config
    own = isinstance(error, (DeviceUnavailableError, UnsupportedFeatureError))
    if found.fix is None and isinstance(error, DevrunError) and not own:
        note.refused(error)
    return found.fix


def _follows(probing: list[Probe], error: Exception) -> bool:
    """Whether it comes of what was found already."""
    return any(one.follows(error) for one in probing)


def _built(cfg: Any, request: Request, fresh: Fresh) -> Training:
    """The training of `cfg`, as a new process would build it."""
    trust = cfg.get("load_from") if request.grants.everything else None
    fresh.restore()
    training = build_short(cfg, progress=False, allow_pickle=trust)
    fresh.look()
    return training


def _resume(
    cfg: Any,
    build: Build,
    note: Notebook,
    probing: list[Probe],
    going: GoesOn,
    first: Updates,
) -> None:
    """Go on from the middle of the first run, and lay the updates over its own."""
    length = "max_epochs" if "max_epochs" in cfg["runner"] else "max_iters"
    each = cfg["runner"][length] // 2

    def resumed(
        carried: Mapping[Any, Any], begun: Updates | None = first, rounds: int = 2
    ) -> Updates:
        cfg.merge_from_dict({"resume_from": begun and begun.saved})
        cfg.merge_from_dict({f"runner.{length}": rounds * each})
        training = build()
        second = Updates(training, begun, carried, rounds)
        with closing(training.runner), ExitStack() as watches:
            training.runner.register_hook(second)
            for probe in probing:
                watches.enter_context(probe.getting_past())
            watches.enter_context(going.around(training))
            if carried or begun is not first:  # what these raise is told, or nobody's
                watches.enter_context(suppress(Exception))
                watches.enter_context(patch.object(note, "quiet", True))
            training.run()
        return second

    try:
        second = resumed({})
    except Exception as error:  # noqa: BLE001 - the user's own too: a finding
        if LATE not in {key[1] for key in note.seen}:  # it follows from those
            note.found(replace(refusal(error), kind="resume", fix=None))
        return
    kept = [what for _, kind, what, _ in note.seen if kind in _KEPT]
    # what a graph keeps makes updates differ, but not what the user's objects hold
    follow = {"update", "weights", *re.findall(r"\w+", " ".join(kept))} if kept else ()
    told = differences(first, second, resumed, going.seconds)
    for finding in chain(told, begins_late(first, resumed), counters(first)):
        if finding.what == "data" or finding.what.rpartition(".")[2] not in follow:
            note.found(finding)
