"""`CheckpointHook`: save every so often, and keep only the newest."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from time import perf_counter
from typing import Any

from devrun.checkpoint.catalog import prune, set_others_aside, sweep_leftovers
from devrun.checkpoint.storage import (
    check_possible,
    check_writable,
)
from devrun.dist import allreduce_params, on_main
from devrun.errors import (
    ConfigError,
    StorageError,
    UnsupportedFeatureError,
)
from devrun.files import disk_errors, own_folder, user_path
from devrun.hooks.base import Hook, Priority
from devrun.hooks.timer import exclude_time
from devrun.lock import lock_directory, unlock_directory
from devrun.parallel.divided import is_divided
from devrun.ranks import together
from devrun.registry import HOOKS
from devrun.run import Run


def saves_in_background(runner: Run) -> bool:
    """Whether the run was asked to write its checkpoints while it trains on."""
    hooks = (hook for hook in runner.hooks if isinstance(hook, CheckpointHook))
    return any(hook.in_background for hook in hooks)


def saves_full(runner: Run) -> bool | None:
    """Whether the run was asked for checkpoints that rank 0 writes whole, or in pieces;
    None where it was not asked."""
    hooks = (hook for hook in runner.hooks if isinstance(hook, CheckpointHook))
    return next((hook.full for hook in hooks if hook.full is not None), None)


@HOOKS.register_module()
class CheckpointHook(Hook):
    """Saves through `runner.save_checkpoint` and deletes what is too old.

    A run goes on where the disk refuses a checkpoint; that the last state could not be
    saved is an error at its end.

    A checkpoint is named by the updates done, so one taken inside an epoch never
    replaces another.

    Args:
        interval: epochs (or iterations) between checkpoints; -1 for none but the last.
        by_epoch: what `interval` counts.
        save_optimizer: whether the optimizer's state is in it.
        out_dir: where; a folder named as `work_dir` is made in it. By default
            `work_dir/checkpoints`.
        max_keep_ckpts: how many to keep; -1 keeps all. Older ones are deleted in the
            background, once a newer one has been verified. The best one does not
            count.
        save_last: save at the end of the run whatever the interval.
        sync_buffer: average the buffers of all processes before saving.
        file_client_args: MMCV's remote storage; refused.
        full: whether the process of rank 0 writes all weights and optimizer state
            (`true`), or each process those that are its own (`false`). By default the
            second where they are spread over processes (fsdp, tensor), else the first:
            what every process has alike, rank 0 always writes.
        kwargs: `async`: training waits only for a copy of its state, which is
            written meanwhile; a failure is reported at the next iteration. The others
            are for `save_checkpoint`.

    Raises:
        UnsupportedFeatureError: `file_client_args`, or `filename_tmpl`.
    """

    priority: Any = Priority.LOWEST
    """Last in its stage, so that it saves what the other hooks did there."""

    def __init__(
        self,
        interval: int = -1,
        by_epoch: bool = True,
        save_optimizer: bool = True,
        out_dir: str | os.PathLike[str] | None = None,
        max_keep_ckpts: int = -1,
        save_last: bool = True,
        sync_buffer: bool = False,
        file_client_args: Any = None,
        *,
        full: bool | None = None,
        **kwargs: Any,
    ) -> None:
        in_background = kwargs.pop("async", False)  # no name for an argument
        if file_client_args is not None:
            raise UnsupportedFeatureError(
                "file_client_args: checkpoints are written to local paths only; set "
                "out_dir to a mounted directory",
                key="file_client_args",
            )
        if kwargs.get("filename_tmpl") is not None:
            raise UnsupportedFeatureError(
                "filename_tmpl: checkpoints are directories; leave it out, and "
                "`devrun export CHECKPOINT` makes MMCV's .pth of one",
                key="filename_tmpl",
            )
        self.interval = interval
        self.in_background = in_background
        self.full = full
        self.by_epoch = by_epoch
        self.save_optimizer = save_optimizer
        self.out_dir = None if out_dir is None else os.fspath(out_dir)
        self.max_keep_ckpts = max_keep_ckpts
        self.save_last = save_last
        self.sync_buffer = sync_buffer
        self.args = kwargs
        self._placed = self._dry_run = False
        self._locked: list[str] = []
        self._saved_at = 0

    def prepare_dry_run(self) -> bool:
        """One checkpoint at the end, in the temporary folder if space suffices."""
        if self.out_dir is not None:
            check_possible(self.out_dir)
            self.out_dir = None
        self.interval, self.save_last = -1, True
        self._dry_run = True
        return True

    def directory(self, work_dir: str | None) -> str:
        """Where the checkpoints of a run in `work_dir` go.

        Raises:
            ConfigError: there is no such place.
        """
        if self.out_dir is None:
            if work_dir is None:
                raise ConfigError(
                    "CheckpointHook has nowhere to save: give the runner a work_dir, "
                    "or the hook an out_dir"
                )
            return str(own_folder(work_dir, "checkpoints"))
        if work_dir is None or self._placed:
            return self.out_dir
        return str(user_path(self.out_dir).absolute() / Path(work_dir).name)

    def before_run(self, runner: Run) -> None:
        self.out_dir = self.directory(runner.work_dir)
        self._placed = True
        self._saved_at = runner.iter
        on_main(lambda: self._make_ready(runner))
        if self.full is not True and is_divided(runner.model):
            together(self._check_here)
        runner.logger.info("Checkpoints will be saved to %s", self.out_dir)

    def _make_ready(self, runner: Run) -> None:
        """Claim the places that this run writes in, and clear up what is there."""
        out_dir = Path(str(self.out_dir))
        check_writable(out_dir)
        with disk_errors(f"cannot write in {self.out_dir!r}"):
            if runner.work_dir is not None:
                self._lock(runner.work_dir, runner)
            if not runner.work_dir or Path(runner.work_dir) not in out_dir.parents:
                self._lock(str(out_dir), runner)
        for name in sweep_leftovers(out_dir):
            runner.logger.info("Removed %s, left by a run that was killed", name)
        saver = runner.checkpointer
        if place := set_others_aside(out_dir, saver.run_id, saver.rewound_to):
            whose = "of another run"
            if saver.rewound_to is not None:
                whose += f", or of later than update {saver.rewound_to} of this one"
            runner.logger.warning(
                "the checkpoints in %s %s are now in %s", out_dir, whose, place
            )

    def _check_here(self) -> None:
        """Where every process writes a piece, each must see what rank 0 has made."""
        out_dir = Path(str(self.out_dir))
        if not out_dir.is_dir() or not os.access(out_dir, os.W_OK | os.X_OK):
            what = "is read-only" if out_dir.is_dir() else "is not there"
            raise StorageError(
                f"{str(out_dir)!r} {what} for this process, which writes its pieces of "
                "the weights: take a work_dir that all can write in, or "
                "checkpoint_config: {full: true}"
            )

    def _lock(self, directory: str, runner: Run) -> None:
        lock_directory(directory, runner)
        self._locked.append(directory)

    def _unlock(self, runner: Run) -> None:
        while self._locked:
            unlock_directory(self._locked.pop(), runner)

    def after_train_epoch(self, runner: Run) -> None:
        if self.by_epoch and (
            self.every_n_epochs(runner, self.interval)
            or (self.save_last and self.is_last_epoch(runner))
        ):
            runner.logger.info("Saving checkpoint at %d epochs", runner.epoch + 1)
            self._save_checkpoint(runner)

    def after_train_iter(self, runner: Run) -> None:
        if self.in_background:
            with self._going_on(runner):
                runner.checkpointer.check()
        if not self.by_epoch and (
            self.every_n_iters(runner, self.interval)
            or (self.save_last and self.is_last_iter(runner))
        ):
            runner.logger.info("Saving checkpoint at %d iterations", runner.iter + 1)
            self._save_checkpoint(runner)

    def after_run(self, runner: Run) -> None:
        # A run that was asked to stop never reaches its last epoch or iteration.
        if self.save_last and self._saved_at == runner.iter:
            with self._going_on(runner):
                runner.checkpointer.finish()
        if self.save_last and self._saved_at != runner.iter:
            runner.logger.info("Saving checkpoint at the end, %d updates", runner.iter)
            with self._going_on(runner) if self._dry_run else nullcontext():
                self._save(runner)
        runner.checkpointer.finish()
        self._unlock(runner)

    def on_exception(self, runner: Run, exception: BaseException) -> None:
        try:  # alone: the other ranks may never come here
            runner.checkpointer.wait_for_writer()
        finally:
            self._unlock(runner)

    def _save_checkpoint(self, runner: Run) -> None:
        """Save now and delete what is too old; called on every rank."""
        began = perf_counter()
        with self._going_on(runner):
            runner.checkpointer.finish()
        with self._going_on(runner):
            self._save(runner)
        exclude_time(runner, perf_counter() - began, "saving")

    def _save(self, runner: Run) -> None:
        if self.sync_buffer:
            allreduce_params(runner.model.buffers())
        messages = runner.meta.setdefault("hook_msgs", {})
        path = Path(
            runner.save_checkpoint(
                self.out_dir,
                save_optimizer=self.save_optimizer,
                background=self.in_background,
                then=self._prune,
                **self.args,
            )
        )
        self._saved_at = runner.checkpointer.last_saved_iter
        messages["last_ckpt"] = str(path)

    def _prune(self) -> None:
        """Delete what is too old, once the new checkpoint is durable; on rank 0."""
        if self.max_keep_ckpts > 0:
            prune(str(self.out_dir), self.max_keep_ckpts)

    @contextmanager
    def _going_on(self, runner: Run) -> Iterator[None]:
        """Go on where the disk refuses, on every rank."""
        try:
            yield
        except StorageError as error:
            self._saved_at = -1
            runner.logger.error(
                "checkpoint not saved, training goes on without it: %s", error
            )
