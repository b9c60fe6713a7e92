"""`roll_back`: return a diverged run to a checkpoint and skip what made it diverge."""

from __future__ import annotations

from devrun import dist
from devrun.checkpoint import find_latest
from devrun.errors import DivergedError, RollbackError, StorageError
from devrun.runners.checkpointer import Checkpointer, WholeRun


def roll_back(
    run: WholeRun, checkpointer: Checkpointer, failure: RollbackError
) -> None:
    """Return to the newest whole checkpoint, but not to its position in the data.

    The weights, the optimizer, the hooks and the random streams go back. What was
    read since then, the update that failed included, is not read again; updates left
    out are not made up for, so that `iter` ends short of `max_iters`. What is decided
    is saved at once: a run that is killed afterwards does not meet the same data again.

    Raises:
        DivergedError: it went back `max_rollbacks` times already, or cannot.
    """
    state, limit = run.state, run.policy.max_rollbacks
    state.reopen()
    if checkpointer.rollbacks >= limit:
        raise DivergedError(
            f"{failure}; this run went back {checkpointer.rollbacks} times already, "
            f"and max_rollbacks is {limit}"
        ) from failure
    # in the hooks behind an update it has been counted already
    in_progress = state.update_in_progress
    reached = max(state.updates, state.iter) + in_progress
    position = state.epoch, state.done
    if state.by_epoch:
        if state.mode == "train":
            position = state.epoch, min(state.done + in_progress, len(run.data_loader))
        run.session.close_loaders()  # where updates count they are read on
    try:
        checkpointer.finish()
    except StorageError as error:
        run.logger.error("%s; an older checkpoint is looked for", error)
    found = dist.on_main(lambda: find_latest(*checkpointer.folders()))
    if found is None:
        raise DivergedError(
            f"{failure}; there is no checkpoint to go back to yet"
        ) from failure
    checkpointer.return_to(found, position)
    run.log_buffer.clear()
    run.logger.warning(
        "%s: back to update %d (%s), and past the data read since then, %d "
        "updates; rollback %d of at most %d",
        failure,
        state.iter,
        found.name,
        reached - state.iter,
        checkpointer.rollbacks,
        limit,
    )
    try:
        checkpointer.save(found.parent)
        checkpointer.finish()
    except StorageError as error:
        run.logger.error("the rollback is not saved: %s", error)
