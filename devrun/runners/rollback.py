"""`RollingBack`: a run that diverged goes back and leaves out what it stumbled over."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from devrun import dist
from devrun.errors import DivergedError, RollbackError, StorageError
from devrun.runners.persistence import Persistence
from devrun.runners.workflow import Workflow
from devrun.step import UpdatePolicy

__all__ = ["RollingBack"]


class RollingBack(Persistence):
    """The policy `rollback`; mixed into the runner.

    The weights, the optimizer, the hooks and the random streams return to the newest
    whole checkpoint. The place in the data does not: what was read since then, the
    update that failed included, is not read again. Updates left out are not made up
    for, so that `iter` ends short of `max_iters`. What is decided is saved at once:
    a run that is killed afterwards does not meet the same data again.
    """

    policy: UpdatePolicy
    log_buffer: Any
    data_loader: Any
    _close_loaders: Callable[[], None]

    def _run_to_the_end(
        self, flow: Workflow, finished: Callable[[], bool], **kwargs: Any
    ) -> None:
        """The phases in turn, again from where a rollback leads."""
        while True:
            try:
                for mode, loader in flow.steps(finished):
                    self._cut_short = False
                    getattr(self, mode)(loader, **kwargs)
                    if self.should_stop:
                        if not self._cut_short:
                            flow.advance()
                        return
            except RollbackError as error:
                failure = error
            else:
                return
            failure.__traceback__ = None  # its frames hold the batch and the graph
            self._roll_back(failure)

    def _roll_back(self, failure: RollbackError) -> None:
        limit = self.policy.max_rollbacks
        if self._rollbacks >= limit:
            raise DivergedError(
                f"{failure}; this run went back {self._rollbacks} times already, and "
                f"max_rollbacks is {limit}"
            ) from failure
        # in the hooks behind an update it has been counted already
        in_progress = self.mode == "train" and self._updates == self._iter
        reached = max(self._updates, self._iter) + in_progress
        place = self._after_failure()
        if self._by_epoch:  # else the loaders are read on
            self._close_loaders()
        try:
            self.finish_saving()
        except StorageError as error:
            self.logger.error("%s; an older checkpoint is looked for", error)
        found = dist.on_main(lambda: getattr(self._newest(), "path", None))
        if found is None:
            raise DivergedError(
                f"{failure}; there is no checkpoint to go back to yet"
            ) from failure
        allowed, rewound = self._allows_changes, self.rewound_to
        self.resume(found, allow_changes=allowed)
        self.rewound_to = rewound
        self._rollbacks += 1
        self._epoch, self._done = place
        self._pending_position = None  # the loaders stay where they are
        self._restore_hooks()
        self.log_buffer.clear()
        self.logger.warning(
            "%s: back to update %d (%s), and past the data read since then, %d "
            "updates; rollback %d of at most %d",
            failure,
            self._iter,
            found.name,
            reached - self._iter,
            self._rollbacks,
            limit,
        )
        try:
            self.save_checkpoint(found.parent)
            self.finish_saving()
        except StorageError as error:
            self.logger.error("the rollback is not saved: %s", error)

    def _after_failure(self) -> tuple[int, int]:
        """(epoch, updates of it) behind the update in progress."""
        if self.mode != "train" or not self._by_epoch:
            return self._epoch, self._done
        in_progress = self._updates == self._iter  # else in the hooks behind it
        return self._epoch, min(self._done + in_progress, len(self.data_loader))
