"""`Saving`: what a runner saves, and when that is on the disk."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from torch import nn

from devrun import __version__, dist
from devrun.checkpoint import (
    BackgroundWriter,
    host_rng_state,
    optimizer_state_by_name,
    save_checkpoint,
    step_name,
    write_checkpoint,
)
from devrun.config.redact import redacted
from devrun.devices.base import DeviceAdapter
from devrun.errors import ConfigError, ConfigTypeError
from devrun.hooks.dispatch import HookTable
from devrun.runners.arguments import file_name, plain_meta
from devrun.runners.saved import loader_facts
from devrun.runners.state import LoopState
from devrun.runners.workflow import Workflow

__all__ = ["CHECKPOINTS", "Saving"]

CHECKPOINTS = "checkpoints"
"""Folder of the checkpoints inside a work_dir."""


class Saving(LoopState):
    """Writing checkpoints; mixed into the runner, which owns all the state.

    A checkpoint is always taken between two updates. Its position says what has been
    done: `epoch` whole epochs, `done` updates of the next one, `iter` updates in all,
    and the place in the workflow.
    """

    model: nn.Module
    optimizer: Any
    adapter: DeviceAdapter
    meta: dict[str, Any]
    seed: int
    work_dir: str | None
    logger: Any
    _table: HookTable
    _step_model: Any
    _prepared = False
    run_id: str
    """What the checkpoints of this run have in common, also after a resume."""
    config: Mapping[str, Any] | None = None
    """The resolved config, without secrets, as it is kept in checkpoints."""
    save_in_background = False
    """Whether `save_checkpoint` returns once the state is copied."""
    _by_epoch: bool
    _pending_adapter: Mapping[str, Any]
    _workflow: Workflow | None = None
    _updates = 0  # like `iter`, but right already while after_train_iter runs
    _done = 0  # updates of the present epoch
    _phase_over = False
    _cut_short = False  # whether a phase ended before its data did
    _saved_at = -1
    _rollbacks = 0
    _pending_position: Mapping[str, Any] | None = None
    _pending_hooks: Mapping[str, Any] | None = None
    _pending_rng: Mapping[str, Any] | None = None
    _writer: BackgroundWriter | None = None

    @property
    def last_saved_iter(self) -> int:
        """Updates done when the last checkpoint was written; -1 for none."""
        return self._saved_at

    def checkpoint_root(self, out_dir: str | os.PathLike[str] | None = None) -> Path:
        """The directory that checkpoints go to: `out_dir`, or one in `work_dir`."""
        if out_dir is not None:
            return Path(out_dir)
        if self.work_dir is None:
            raise ConfigError(
                "there is no work_dir to keep checkpoints in; give the runner one, "
                "or pass out_dir"
            )
        return Path(self.work_dir) / CHECKPOINTS

    def save_checkpoint(
        self,
        out_dir: str | os.PathLike[str] | None = None,
        filename_tmpl: str | None = None,
        save_optimizer: bool = True,
        meta: Mapping[str, Any] | None = None,
        create_symlink: bool = True,
        *,
        name: str | None = None,
        background: bool | None = None,
        then: Callable[[], None] | None = None,
    ) -> str:
        """Write a checkpoint; its path. All ranks must call it together.

        Args:
            out_dir: `work_dir/checkpoints` by default.
            filename_tmpl: one that ends in `.pth`, such as `epoch_{}.pth`, asks for a
                single file in MMCV's layout, without random streams and hook state.
            save_optimizer: whether the optimizer's state is in it.
            meta: kept beside the runner's own `meta`.
            create_symlink: accepted as in MMCV; the newest checkpoint is found
                without a link.
            name: of the directory; `step-` and the number of updates by default.
            background: return once the state is copied, and write meanwhile;
                `save_in_background` by default. A `.pth` file is always waited for.
            then: called on rank 0 when it is durable, in the background, and waited
                for as such a write is.

        Raises:
            StorageError: it could not be written, or the one before in the
                background could not; what was there before is whole.
        """
        if meta is not None and not isinstance(meta, Mapping):
            raise ConfigTypeError(f"meta must be a dict or None, got {meta!r}")
        background = self.save_in_background if background is None else background
        self.finish_saving()
        root = self.checkpoint_root(out_dir)
        self.adapter.sync_to_host(self._step_model)
        self.adapter.check_finite(self._step_model)
        position = self._position()
        path = root / (name or self._checkpoint_name(position, filename_tmpl))
        facts = self._facts(position, meta or {}, None if name else path)
        if filename_tmpl is not None:
            tree = {}
        else:
            tree = self._tree(position, facts, save_optimizer)
            self._table.call("before_save_checkpoint", self, tree)

        def write() -> None:
            if self.work_dir is not None and not os.path.isdir(self.work_dir):
                self.logger.warning(
                    "work_dir %s was removed under the run: it is made again, but what "
                    "was in it is lost",
                    self.work_dir,
                )
            about = {**facts, "step": position["iter"], "run_id": self.run_id}
            self._writer = self._writer or BackgroundWriter()
            if filename_tmpl is not None:
                optimizer = self.optimizer if save_optimizer else None
                save_checkpoint(self.model, str(path), optimizer, meta=facts)
            elif background:
                self._writer.save(root, path.name, tree, about, then)
                return
            else:
                write_checkpoint(root, path.name, tree, about)
            if then is not None:
                self._writer.call(then)

        dist.on_main(write)
        self._in_flight = then is not None or (background and filename_tmpl is None)
        if name is None:
            self._saved_at = position["iter"]
        return str(path)

    _in_flight = False  # on every rank, whether rank 0 may still be writing

    def finish_saving(self) -> None:
        """Return when nothing is being written; all ranks must call it together.

        Raises:
            StorageError: what was written in the background is not on the disk.
        """
        if not self._in_flight:
            return
        self._in_flight = False
        try:
            dist.on_main(self.wait_for_writer)
        except BaseException:
            self._saved_at = -1
            raise

    def check_saving(self) -> None:
        """Look, without waiting, whether a write in the background has failed.

        On several ranks nothing is done: they learn of it together, in the next save.

        Raises:
            StorageError: it has.
        """
        if self._writer is not None and self._writer.failed and self._world_size == 1:
            self.finish_saving()

    def wait_for_writer(self) -> None:
        """The part of `finish_saving` that this process can do alone."""
        if self._writer is not None:
            self._writer.wait()

    def _checkpoint_name(self, position: dict[str, Any], template: str | None) -> str:
        if template is None:
            return step_name(position["iter"])
        return file_name(template, position["epoch" if self._by_epoch else "iter"])

    def _facts(
        self, position: dict[str, Any], meta: Mapping[str, Any], path: Path | None
    ) -> dict[str, Any]:
        """The `meta` of a checkpoint; one that is the latest names itself."""
        messages = dict(self.meta.get("hook_msgs", {}))
        if path is not None:
            messages["last_ckpt"] = str(path)
        return {
            **redacted(plain_meta({**self.meta, **meta})),
            "hook_msgs": redacted(messages),
            "devrun_version": __version__,
            "epoch": position["epoch"],
            "iter": position["iter"],
            "device": self.adapter.name,
            "emulated": self.adapter.emulated,
        }

    def _tree(
        self, position: dict[str, Any], facts: dict[str, Any], save_optimizer: bool
    ) -> dict[str, Any]:
        """Everything a resumed run needs, part by part; collective over the ranks."""
        hooks = self._pending_hooks
        tree: dict[str, Any] = {
            "model": self.model.state_dict(),
            "adapter": self.adapter.state_dict(),
            "hooks": self._table.state_dict() if hooks is None else dict(hooks),
            "trainer": {
                "position": position,
                "meta": facts,
                "seed": self.seed,
                "by_epoch": self._by_epoch,
                "rollbacks": self._rollbacks,
                "config": None if self.config is None else dict(self.config),
            },
        }
        if save_optimizer and self.optimizer is not None:
            tree["optimizer"] = optimizer_state_by_name(self.model, self.optimizer)
        for rank, state in enumerate(dist.gather_objects(self._rng_state())):
            tree[f"rng-rank{rank:05d}"] = state
        return tree

    def _position(self) -> dict[str, Any]:
        """Where the run stands, as the first thing a resumed one needs to know."""
        over = self._phase_over
        train_over = over and self.mode == "train" and self._by_epoch
        position: dict[str, Any] = {
            "epoch": self._epoch + 1 if train_over else self._epoch,
            "done": 0 if train_over else self._done,
            "iter": max(self._updates, self._iter),
        }
        if self._workflow is not None:
            position["workflow"] = self._workflow.position(completed=over)
            position["loaders"] = [
                loader_facts(loader, mode)
                for loader, (mode, _) in zip(
                    self._workflow.loaders, self._workflow.flow, strict=True
                )
            ]
        return position

    def _rng_state(self) -> Mapping[str, Any]:
        if self._pending_rng is not None:  # resumed, and not in use yet
            return self._pending_rng
        return {"host": host_rng_state(), "device": self.adapter.rng_state()}
