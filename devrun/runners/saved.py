"""`SavedRun`: a checkpoint as one value: what its run was, and all that it kept."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from devrun.checkpoint import (
    Checkpoint,
    Like,
    read_checkpoint,
    read_latest,
    read_mmcv_checkpoint,
    set_host_rng_state,
)
from devrun.data.rng import preserved
from devrun.errors import CheckpointError, DevrunError
from devrun.runners.position import check_position

_TRIPS = (LookupError, TypeError, ValueError, AttributeError, RuntimeError)
_REQUIRED = ("model", "trainer", "hooks", "adapter", "rng-rank00000")


@dataclass(frozen=True)
class SavedRun:
    """What a run can go on from, every field of the type it should have."""

    path: Path
    parts: dict[str, Any]
    """`model`, `optimizer`, `hooks`, ...: what `after_load_checkpoint` is given."""
    position: Mapping[str, Any]
    """`epoch`, `iter` and `done`; maybe `workflow` and `loaders`."""
    meta: Mapping[str, Any]
    seed: int | None = None
    by_epoch: bool | None = None
    config: Mapping[str, Any] | None = None
    run_id: str | None = None
    environment: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def read(
        cls,
        source: Path | Checkpoint,
        *,
        allow_pickle: bool = False,
        like: Like | None = None,
    ) -> SavedRun:
        """From a checkpoint directory, or a file of an MMCV runner.

        `like`: as `read_checkpoint` takes it.

        Raises:
            CheckpointError: it is damaged, or no run can go on from it.
        """
        if isinstance(source, Path) and source.suffix == ".pth":
            mmcv = read_mmcv_checkpoint(source, allow_pickle=allow_pickle)
            epoch, done = mmcv.progress
            return cls(
                source,
                {"model": mmcv.state_dict, "optimizer": mmcv},
                {"epoch": epoch, "iter": done, "done": 0},
                {key: value for key, value in mmcv.meta.items() if key != "config"},
            )
        found = (
            read_checkpoint(source, like=like) if isinstance(source, Path) else source
        )
        for part in _REQUIRED:
            if part not in found.parts:
                raise CheckpointError(
                    f"{str(found.path)!r} has no part {part!r}: no run can go on from "
                    "it; take its weights with load_from"
                )
        return cls._of_trainer(found)

    @classmethod
    def _of_trainer(cls, found: Checkpoint) -> SavedRun:
        trainer = found.parts["trainer"]
        try:
            position = dict(trainer["position"])
            check_position(position)
            config = trainer["config"]
            return cls(
                found.path,
                dict(found.parts),
                position,
                meta=dict(trainer["meta"]),
                seed=_optional(trainer["seed"], int),
                by_epoch=_optional(trainer["by_epoch"], bool),
                config=None if config is None else dict(config),
                run_id=found.manifest.run_id,
                environment=found.manifest.environment,
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise CheckpointError(
                f"{str(found.path)!r} does not say where its run stood "
                f"({error!r:.100}): it was not written by save_checkpoint of a runner"
            ) from error

    @property
    def ranks(self) -> int:
        """Processes whose random streams are in it."""
        return sum(part.startswith("rng-rank") for part in self.parts)

    def random_state(self, rank: int) -> Any:
        """The random streams of a process; None where they were not kept."""
        return self.parts.get(f"rng-rank{rank:05d}")

    def check_random_state(self, rank: int) -> None:
        """Refuse streams that could not be put back when the loop starts."""
        state = self.random_state(rank)
        if state is not None:
            with malformed("the state of the random streams"), preserved():
                set_host_rng_state(state["host"])
                dict(state["device"])


def newest_checkpoint(
    roots: Sequence[Path], logger: logging.Logger, like: Like | None = None
) -> Checkpoint | None:
    """The newest whole checkpoint in `roots`, read; None where there is nothing yet.

    `like`: as `read_checkpoint` takes it.

    Raises:
        CheckpointError: there are only damaged ones, or files in MMCV's layout: to
            start again over those would lose them.
    """
    found = read_latest(*roots, like=like)
    where = ", ".join(map(str, roots))
    files = [path for root in roots for path in root.glob("*.pth")]
    if files and found is None:
        raise CheckpointError(
            f"there are only files in MMCV's layout in {where}, of which 'auto' takes "
            "none; name the one to resume from"
        )
    if found is None:
        logger.info("no checkpoint in %s yet: starting from scratch", where)
    elif files:
        logger.warning(
            "%d files in MMCV's layout in %s are passed over", len(files), where
        )
    return found


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


def _optional(value: Any, kind: type) -> Any:
    if value is not None and type(value) is not kind:
        raise TypeError(f"{value!r} instead of {kind.__name__}")
    return value
