"""`trial`: a training made short, to try it out, to rehearse it or to look into it.

What of a config has to go or to shrink for that is known here alone, so that all who
try a training try the same one.
"""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from copy import deepcopy
from pathlib import Path
from typing import Any

from devrun.checkpoint import find_latest
from devrun.config import Config
from devrun.config.tree import inside, where
from devrun.data.spec import BATCHES
from devrun.device_facts import FACTS
from devrun.devices.device_section import adapter_of
from devrun.hooks.base import Hook
from devrun.interop import read
from devrun.place import COMMAND_LINE, Origin
from devrun.run import Run
from devrun.runners.checkpointer import CHECKPOINTS
from devrun.runners.training import Training, build_training

logger = logging.getLogger("devrun")

_LOADERS = ("data.train_dataloader", "data.val_dataloader")
_MOST = 2
"""Batches of an update and replicas, where sizes are made smaller."""
_OF_TRAINING = (
    *(
        "load_from",
        "watchdog",
        "custom_hooks",
        "benchmark",
        "lr_config",
        "momentum_config",
    ),
)
"""Sections that nothing but training has a use for."""
_WHEN = ("save_best", "rule", "start", "interval", "out_dir")
"""Arguments of an `evaluation` that say when to evaluate and what to keep."""


@contextmanager
def trial(
    cfg: Mapping[str, Any],
    updates: int,
    *,
    evaluate: int = 0,
    save: bool = False,
    samples: int | None = None,
    device: Any = None,
    weights: bool = False,
    exact: bool = False,
    allow_pickle: str | None = None,
    **how: Any,
) -> Iterator[Training]:
    """The training of `cfg`, made short; it is closed afterwards, and leaves nothing.

    It begins anew, in a folder that is removed. Its schedule is its own, and left
    after so many updates; one that evaluates or saves has a short one in which
    everything takes its turn.

    Args:
        cfg: a checked config, of whatever style; it is not changed.
        updates: how many. 0 is for who trains nothing: only the parts that an
            evaluation has a use for are built, and there is no folder.
        evaluate: how often, evenly spread over the updates.
        save: keep the hook that saves; it does so at the end.
        samples: of a batch at the most; accumulation and replicas are made small too.
        device: what the config's `device` is here, if it is not its own. Batches are
            read in the process then, and `performance`, which chooses for the device
            that the run has, is left out.
        weights: begin with those of the checkpoint that the run would go on from.
        exact: compute fp32 in all its digits, unless the config asks for TF32.
        allow_pickle: a file among `resume_from` and `load_from` whose code may run.
        how: more arguments of `build_training`.

    Raises:
        DevrunError: as the training would.
    """
    begins = _resumed(cfg) if weights else None
    small = read(deepcopy(cfg) if isinstance(cfg, Config) else Config(dict(cfg)))
    with ExitStack() as undo:
        folder = None
        if updates:
            scratch = tempfile.TemporaryDirectory(prefix="devrun-trial-")
            folder = undo.enter_context(scratch)
        sizes = {"samples": samples, "device": device, "work_dir": folder}
        shorten(small, updates, evaluate=evaluate, save=save, **sizes)
        if begins:
            small["load_from"] = None
        if exact:
            _keep_digits(small)
        how = {"validate": evaluate > 0, "allow_pickle": allow_pickle, **how}
        training = build_short(small, **how)
        runner = training.runner
        undo.callback(runner.close)
        if updates and not (evaluate or save):
            runner.register_hook(_End(updates))
        if begins:
            with training.located():
                training.make_room()
                trusted = begins == allow_pickle
                runner.load_checkpoint(begins, strict=True, allow_pickle=trusted)
        yield training


def shorten(
    cfg: Config,
    updates: int,
    *,
    evaluate: int = 0,
    save: bool = False,
    samples: int | None = None,
    least: Mapping[str, int] | None = None,
    device: Any = None,
    work_dir: str | None = None,
) -> dict[str, tuple[int, int]]:
    """Make `cfg` that of a trial, for who builds it several times; see `trial`.

    Args:
        least: keys of sizes that may not be made smaller than this.

    Returns:
        Key -> size that was made smaller, and what it was.
    """
    changes = _schedule(cfg, updates, evaluate or int(save))
    changes.update(work_dir=work_dir, resume_from=None, auto_resume=None)
    if not save:
        changes["checkpoint_config"] = None
    if device is not None:
        changes.update(device=device, performance=None, **_without_workers(cfg))
        if (cfg.get("checkpoint_config") or {}).get("out_dir") and save:
            changes["checkpoint_config.out_dir"] = None  # of another machine
    if not updates:
        changes.update({key: None for key in _OF_TRAINING if key in cfg})
        changes["log_config"] = {"hooks": [], "_delete_": True}
    change(cfg, changes)
    for name in () if updates else _WHEN:
        (cfg.get("evaluation") or {}).pop(name, None)
    return {} if samples is None else _reduce(cfg, samples, least or {})


def change(cfg: Config, changes: Mapping[str, Any]) -> None:
    """Set dotted keys of `cfg`; what is refused of one is at the line where it stands,
    or its section."""
    for key, value in changes.items():
        cfg.merge_from_dict({key: value}, origin=_origin(cfg, key))


def _origin(cfg: Config, key: str) -> Origin:
    """Where a key stands, or else its section."""
    section, _, name = key.rpartition(".")
    held = inside(cfg, section) if section else cfg
    found = where(held, name) if name in (held or ()) else where(cfg, section or name)
    return found.origin or COMMAND_LINE


def _keep_digits(cfg: Any) -> None:
    """Set `tf32: false` where nothing is said of it: torch lets cuDNN use it then."""
    if getattr(getattr(adapter_of(cfg), "options", None), "tf32", False) is None:
        given = cfg.get("device") or "auto"
        section = given if isinstance(given, Mapping) else {"type": given}
        change(cfg, {"device": {**section, "tf32": False, "_delete_": True}})


def build_short(cfg: Any, **how: Any) -> Training:
    """Build a config that was shortened; hooks that send or keep something go."""
    training = build_training(cfg, **how)
    for hook in training.runner.table.prepare_dry_run():
        logger.info("%s takes no part in a dry run", type(hook).__name__)
    return training


class _End(Hook):
    """Ends the run in order after so many updates."""

    priority = "LOWEST"

    def __init__(self, updates: int) -> None:
        self.updates = updates

    def after_train_iter(self, runner: Run) -> None:
        if runner.iter + 1 >= self.updates:
            runner.request_stop(f"after {self.updates} updates")


def _resumed(cfg: Mapping[str, Any]) -> str | None:
    """The checkpoint that the run would go on from."""
    named: str | None = cfg.get("resume_from")
    if named == "auto" or (not named and cfg.get("auto_resume")):
        newest = find_latest(Path(cfg["work_dir"]) / CHECKPOINTS)
        return None if newest is None else str(newest)
    return named


def _schedule(cfg: Config, updates: int, rounds: int) -> dict[str, Any]:
    """Keys of a training of `rounds` equal parts, each with an evaluation at its end.

    Without rounds it is the config's own, of training alone.
    """
    phases = [tuple(phase) for phase in cfg.get("workflow") or [("train", 1)]]
    if not updates:
        return {"workflow": [("train", 1)]}
    if not rounds:
        return {"workflow": [phase for phase in phases if phase[0] != "val"]}
    runner = cfg.get("runner")
    if runner is None:
        return {}  # which is said when it is built
    each, by_iter = updates // rounds, "max_iters" in runner
    times = each if by_iter else 1
    changes = {
        "runner.limit_train": each,
        "runner.limit_val": each,
        "workflow": [(mode, times * min(number, 1)) for mode, number in phases],
        "evaluation.interval": times,
        "evaluation.by_epoch": not by_iter,
    }
    if (cfg.get("evaluation") or {}).get("start") is not None:
        changes["evaluation.start"] = None
    if by_iter:
        return {**changes, "runner.max_iters": updates}
    return {**changes, "runner.max_epochs": rounds}


def _without_workers(cfg: Config) -> dict[str, int]:
    data = cfg.get("data") or {}
    sections = {"data": data, **{at: inside(cfg, at) or {} for at in _LOADERS}}
    return {
        f"{at}.workers_per_gpu": 0
        for at, section in sections.items()
        if section.get("workers_per_gpu")
    }


def _reduce(
    cfg: Config, samples: int, least: Mapping[str, int]
) -> dict[str, tuple[int, int]]:
    """Make smaller what would take too long as it is."""
    limits = {f"{at}.{name}": samples for at in ("data", *_LOADERS) for name in BATCHES}
    for at in ("optimizer_config", "device", *FACTS):
        limits.update({f"{at}.cumulative_iters": _MOST, f"{at}.replicas": _MOST})
    made = {}
    for key, limit in limits.items():
        size = inside(cfg, key)
        if isinstance(size, int) and size > max(limit, least.get(key, 1)):
            made[key] = max(limit, least.get(key, 1)), size
            cfg.merge_from_dict({key: made[key][0]})
    return made
