"""The position of a run in its workflow and data, as saved in a checkpoint."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from devrun.data.streaming import StreamPosition
from devrun.dist import gather_objects, get_dist_info
from devrun.run import Loader, RunState
from devrun.runners.arguments import length
from devrun.runners.workflow import IterLoader, Workflow


def position_of(state: RunState, flow: Workflow | None) -> dict[str, Any]:
    """What has been done, and once the run has begun, where in it and in the data.

    All ranks must ask for it: where it is in a stream is each process's own.
    """
    position: dict[str, Any] = {**state.position()}
    if flow is not None:
        position["workflow"] = flow.position(completed=state.phase_over)
        position["loaders"] = [
            {**loader_facts(loader, mode), **_stream_positions(loader)}
            for loader, (mode, _) in zip(flow.loaders, flow.flow)
        ]
    return position


def take_position(
    position: Mapping[str, Any], state: RunState, flow: Workflow, logger: logging.Logger
) -> bool:
    """Seek to the saved position; returns whether updates are counted again from 0.

    With another batch size they are: it goes on at the same global sample, and
    `max_iters` counts updates of today's size.
    """
    if not flow.seek(position.get("workflow", (0, 0))):
        logger.warning(
            "the workflow %s is not the one of the checkpoint: it starts from its "
            "first phase",
            flow.flow,
        )
    sizes = None
    pairs = zip(flow.loaders, position.get("loaders", []))
    for number, (loader, saved) in enumerate(pairs):
        saved = _of_this_process(loader, saved, logger)
        before = saved["samples_per_update"]
        now = loader.samples_per_update
        if not before or not now:
            before = now = 1
        if saved["done"] is not None and isinstance(loader, IterLoader):
            loader.set_epoch(saved["epoch"])
            done = saved["done"] * before // now
            if flow.flow[number][0] == "val":  # shares differ, and this is of rank 0
                done = min(done, length(loader, needed=False) or done)
            loader.start_at(done)
        elif number == flow.phase:
            state.seek(state.epoch, state.iter, state.done * before // now)
        if before != now:
            sizes = before, now
            logger.warning(
                "an update took %d samples when this was saved and takes %d now: the "
                "run goes on at the same sample, but not bit for bit",
                *sizes,
            )
    if sizes is None or not state.by_epoch:
        return False
    first = next(i for i, (mode, _) in enumerate(flow.flow) if mode != "val")
    done = state.epoch * len(flow.loaders[first]) + state.done
    state.seek(state.epoch, done, state.done)
    return True


def _stream_positions(loader: Any) -> dict[str, Any]:
    """Where each process stands in a stream, of which the shares may differ."""
    stream: StreamPosition | None = getattr(loader, "stream", None)
    if stream is None:
        return {}
    mine: dict[str, Any] = {"present": stream.present}
    if isinstance(loader, IterLoader):
        mine.update(epoch=loader.epoch, done=loader.done)
    return {"streams": gather_objects(mine)}


def _of_this_process(
    loader: Any, saved: Mapping[str, Any], logger: logging.Logger
) -> Mapping[str, Any]:
    """`saved` with what this process read of a stream, if it is one of as many."""
    stream: StreamPosition | None = getattr(loader, "stream", None)
    of_each = saved.get("streams")
    if stream is None or not of_each:
        return saved
    rank, world = get_dist_info()
    if len(of_each) == world:
        stream.go_on(of_each[rank]["present"])
        return {**saved, **of_each[rank]}
    logger.warning(
        "%d processes read this stream and %d do now: each leaves out as many batches "
        "of its new share, which are not the same samples",
        len(of_each),
        world,
    )
    return saved


def loader_facts(loader: Loader, mode: str) -> dict[str, Any]:
    """Where a loader stands, and what the order of its samples depends on."""
    dataset = loader.dataset
    try:
        samples = None if dataset is None else len(dataset)
    except (TypeError, NotImplementedError):  # an iterable one
        samples = None
    return {
        "mode": mode,
        "epoch": loader.epoch if isinstance(loader, IterLoader) else None,
        "done": loader.done if isinstance(loader, IterLoader) else None,
        "samples_per_update": loader.samples_per_update,
        "samples": samples,
        "dataset": None if dataset is None else type(dataset).__name__,
    }


def check_position(position: Mapping[str, Any]) -> None:
    """Refuse a position whose numbers are invalid.

    Raises:
        KeyError, TypeError, ValueError: naming what is wrong.
    """
    _numbers(position, "epoch", "iter", "done")
    if "workflow" in position:
        phase, repeat = position["workflow"]
        _numbers({"phase": phase, "repeat": repeat}, "phase", "repeat")
    for loader in position.get("loaders", ()):
        for key in ("epoch", "done", "samples_per_update"):
            if loader[key] is not None:
                _numbers(loader, key)
        for stream in loader.get("streams", ()):
            _numbers(stream, *(key for key in ("epoch", "done") if key in stream))
            if stream["present"] is not None:
                _numbers(stream["present"], "batches")


def _numbers(values: Mapping[str, Any], *names: str) -> None:
    for name in names:
        if type(values[name]) is not int or values[name] < 0:
            raise ValueError(f"{name} is {values[name]!r}")
