"""`SavedRun`: what a checkpoint says about the run that wrote it, checked."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from devrun.checkpoint import MmcvCheckpoint
from devrun.errors import CheckpointError, DevrunError

__all__ = ["SavedRun", "loader_facts", "malformed"]

_TRIPS = (LookupError, TypeError, ValueError, AttributeError, RuntimeError)


@dataclass(frozen=True)
class SavedRun:
    """The part `trainer` of a checkpoint, every field of the type it should have."""

    position: Mapping[str, Any]
    """`epoch`, `iter` and `done`; maybe `workflow` and `loaders`."""
    meta: Mapping[str, Any]
    seed: int | None = None
    by_epoch: bool | None = None
    rollbacks: int = 0
    config: Mapping[str, Any] | None = None

    @classmethod
    def of(cls, trainer: Any, path: Path) -> SavedRun:
        """From a checkpoint directory.

        Raises:
            CheckpointError: it says nothing of the kind.
        """
        try:
            position = dict(trainer["position"])
            _numbers(position, "epoch", "iter")
            _numbers(position, "done")
            _check_place(position)
            config = trainer["config"]
            return cls(
                position=position,
                meta=dict(trainer["meta"]),
                seed=_optional(trainer["seed"], int),
                by_epoch=_optional(trainer["by_epoch"], bool),
                rollbacks=_optional(trainer["rollbacks"], int) or 0,
                config=None if config is None else dict(config),
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise CheckpointError(
                f"{str(path)!r} does not say where its run stood ({error!r:.100}): it "
                "was not written by save_checkpoint of a runner"
            ) from error

    @classmethod
    def of_mmcv(cls, saved: MmcvCheckpoint) -> SavedRun:
        """From a file of an MMCV runner."""
        epoch, done = saved.progress
        return cls(
            {"epoch": epoch, "iter": done, "done": 0},
            {key: value for key, value in saved.meta.items() if key != "config"},
        )


@contextmanager
def malformed(what: str) -> Iterator[None]:
    """Turn what a reader trips over in a checkpoint into one line about `what`."""
    try:
        yield
    except DevrunError:
        raise
    except _TRIPS as error:
        reason = f"{type(error).__name__}: {error}".split("\n", 1)[0]
        raise CheckpointError(
            f"{what} in the checkpoint cannot be restored ({reason:.200})"
        ) from error


def loader_facts(loader: Any, mode: str) -> dict[str, Any]:
    """Where a loader stands, and what the order of its samples depends on."""
    dataset = getattr(loader, "dataset", None)
    try:
        samples = None if dataset is None else len(dataset)
    except TypeError:
        samples = None
    return {
        "mode": mode,
        "epoch": getattr(loader, "epoch", None),
        "done": getattr(loader, "done", None),
        "samples_per_update": getattr(loader, "samples_per_update", None),
        "samples": samples,
        "dataset": None if dataset is None else type(dataset).__name__,
    }


def _check_place(position: Mapping[str, Any]) -> None:
    if "workflow" in position:
        phase, repeat = position["workflow"]
        _numbers({"phase": phase, "repeat": repeat}, "phase", "repeat")
    for loader in position.get("loaders", ()):
        for key in ("epoch", "done", "samples_per_update"):
            if loader[key] is not None:
                _numbers(loader, key)


def _numbers(values: Mapping[str, Any], *names: str) -> None:
    for name in names:
        if type(values[name]) is not int or values[name] < 0:
            raise ValueError(f"{name} is {values[name]!r}")


def _optional(value: Any, kind: type) -> Any:
    if value is not None and type(value) is not kind:
        raise TypeError(f"{value!r} instead of {kind.__name__}")
    return value
