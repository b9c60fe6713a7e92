"""`Persistence`: what a runner saves, and how it comes back."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import nn

from devrun import __version__, dist
from devrun.checkpoint import (
    MmcvCheckpoint,
    host_rng_state,
    load_checkpoint,
    load_mmcv_optimizer,
    load_optimizer_state_by_name,
    load_state_dict,
    optimizer_state_by_name,
    read_checkpoint,
    read_mmcv_checkpoint,
    save_checkpoint,
    set_host_rng_state,
    step_name,
    write_checkpoint,
)
from devrun.devices.base import DeviceAdapter
from devrun.errors import CheckpointError, ConfigError, ConfigTypeError
from devrun.hooks.checkpoint import CheckpointHook
from devrun.hooks.dispatch import HookTable
from devrun.runners.arguments import file_name, plain_meta
from devrun.runners.newest import newest_checkpoint
from devrun.runners.state import LoopState
from devrun.runners.workflow import Workflow

__all__ = ["Persistence"]

CHECKPOINTS = "checkpoints"
"""Folder of the checkpoints inside a work_dir."""


class Persistence(LoopState):
    """Saving and resuming; mixed into the runner, which owns all the state.

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
    keeps_seed: bool
    """Whether a resumed run keeps its own seed, rather than take the checkpoint's."""
    _by_epoch: bool
    _pending_adapter: Mapping[str, Any]
    _workflow: Workflow | None = None
    _updates = 0  # like `iter`, but right already while after_train_iter runs
    _done = 0  # updates of the present epoch
    _phase_over = False
    _cut_short = False  # whether a phase ended before its data did
    _saved_at = -1
    _pending_position: Mapping[str, Any] | None = None
    _pending_hooks: Mapping[str, Any] | None = None
    _pending_rng: Mapping[str, Any] | None = None

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

        Raises:
            StorageError: it could not be written; what was there before is whole.
        """
        if meta is not None and not isinstance(meta, Mapping):
            raise ConfigTypeError(f"meta must be a dict or None, got {meta!r}")
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
            if filename_tmpl is not None:
                optimizer = self.optimizer if save_optimizer else None
                save_checkpoint(self.model, str(path), optimizer, meta=facts)
            else:
                about = {**facts, "step": position["iter"], "run_id": self.run_id}
                write_checkpoint(root, path.name, tree, about)

        dist.on_main(write)
        if name is None:
            self._saved_at = position["iter"]
        return str(path)

    def load_checkpoint(
        self,
        filename: str | os.PathLike[str],
        map_location: Any = "cpu",
        strict: bool = False,
        revise_keys: Sequence[tuple[str, str]] = ((r"^module\.", ""),),
    ) -> Any:
        """Load weights only, from a checkpoint of devrun, MMCV or safetensors.

        Raises:
            CheckpointError: no such file, damaged, or nothing in it fits.
        """
        self.logger.info("load checkpoint from %s", filename)
        loaded = load_checkpoint(
            self.model,
            str(filename),
            map_location=map_location,
            strict=strict,
            logger=self.logger,
            revise_keys=list(revise_keys),
        )
        if self._prepared:
            self.adapter.sync_to_device(self._step_model)
        return loaded

    def resume(
        self,
        checkpoint: str | os.PathLike[str],
        resume_optimizer: bool = True,
        map_location: Any = "default",
    ) -> None:
        """Continue the run that wrote `checkpoint`, exactly where it stood.

        The weights, the optimizer and the counters are back at once; the hooks' state
        and the random streams when the loop starts.

        Args:
            checkpoint: a directory or MMCV `.pth` file, or `auto` for the newest
                whole one in `work_dir`, if there is any.
            resume_optimizer: False keeps the optimizer as it is.
            map_location: accepted as in MMCV; state is read to the host first.

        Raises:
            CheckpointError: it is damaged, or does not fit this run.
        """
        path = self._resolved(checkpoint)
        if path is None:
            return
        if path.suffix == ".pth":
            tree = self._read_mmcv(path, resume_optimizer)
        else:
            saved = read_checkpoint(path)
            tree = dict(saved.parts)
            self.run_id = saved.manifest.run_id or self.run_id
        self._table.call("after_load_checkpoint", self, tree)
        load_state_dict(
            self.model, tree["model"], strict=True, logger=self.logger, source=str(path)
        )
        if resume_optimizer and self.optimizer is not None:
            self._load_optimizer(tree.get("optimizer"), path)
        trainer = tree["trainer"]
        self.meta.update(trainer["meta"])
        position = trainer["position"]
        self._epoch, self._iter = position["epoch"], position["iter"]
        self._updates, self._done = self._iter, position.get("done", 0)
        self._saved_at = self._iter
        self._pending_position = position
        self._pending_hooks = tree.get("hooks", {})
        self._adopt_seed(trainer.get("seed"))
        self._pending_rng = tree.get(f"rng-rank{self._rank:05d}")
        if self._prepared:
            self.adapter.load_state_dict(tree.get("adapter", {}))
            self.adapter.sync_to_device(self._step_model)
        else:
            self._pending_adapter = tree.get("adapter", {})
        self.logger.info(
            "resumed epoch: %d, iter: %d from %s", self._epoch, self._iter, path
        )

    def _read_mmcv(self, path: Path, resume_optimizer: bool) -> dict[str, Any]:
        """An MMCV file as the parts of a checkpoint."""
        saved = read_mmcv_checkpoint(path)
        epoch, done = saved.progress
        tree: dict[str, Any] = {
            "model": saved.state_dict,
            "trainer": {"meta": saved.meta, "position": {"epoch": epoch, "iter": done}},
        }
        if resume_optimizer and self.optimizer is not None:
            tree["optimizer"] = saved
        return tree

    def _load_optimizer(self, state: Any, path: Path) -> None:
        if state is None:
            raise CheckpointError(
                f"{str(path)!r} has no optimizer state; resume with "
                "resume_optimizer=False, or take its weights with load_from"
            )
        if isinstance(state, MmcvCheckpoint):
            load_mmcv_optimizer(self.model, self.optimizer, state)
        else:
            load_optimizer_state_by_name(self.model, self.optimizer, state)

    def _adopt_seed(self, saved: int | None) -> None:
        """Keep the data order of the run that is resumed."""
        if saved is None or saved == self.seed:
            return
        if self.keeps_seed:
            self.logger.warning(
                "the run was started with seed %d and is resumed with %d: the order "
                "of the data changes from here on",
                saved,
                self.seed,
            )
            return
        self.seed = self.adapter.data_seed = saved

    def _resolved(self, checkpoint: str | os.PathLike[str]) -> Path | None:
        if str(checkpoint) != "auto":
            return Path(checkpoint)
        hooks = [h for h in self._table.hooks if isinstance(h, CheckpointHook)]
        places = [Path(hook.directory(self.work_dir)) for hook in hooks]
        return newest_checkpoint([self.checkpoint_root(), *places], self.logger)

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
            **plain_meta({**self.meta, **meta}),
            "hook_msgs": messages,
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
        tree: dict[str, Any] = {
            "model": self.model.state_dict(),
            "adapter": self.adapter.state_dict(),
            "hooks": self._table.state_dict(),
            "trainer": {"position": position, "meta": facts, "seed": self.seed},
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
                {
                    "epoch": getattr(loader, "epoch", None),
                    "done": getattr(loader, "done", None),
                    "samples_per_update": getattr(loader, "samples_per_update", None),
                }
                for loader in self._workflow.loaders
            ]
        return position

    def _rng_state(self) -> dict[str, Any]:
        return {"host": host_rng_state(), "device": self.adapter.rng_state()}

    def _restore_rng(self) -> None:
        """Put the random streams back, once, when the loop is where they were saved."""
        if self._pending_rng is None:
            return
        state, self._pending_rng = self._pending_rng, None
        set_host_rng_state(state["host"])
        self.adapter.set_rng_state(state["device"])

    def _restore_position(self, flow: Workflow) -> None:
        """Take up, once, the saved place in the workflow and in the data."""
        position, self._pending_position = self._pending_position, None
        if position is None:
            return
        if not flow.seek(position.get("workflow", (0, 0))):
            self.logger.warning(
                "the workflow %s is not the one of the checkpoint: it starts from its "
                "first phase",
                flow.flow,
            )
        saved = position.get("loaders", [])
        resized = [
            self._restore_loader(loader, state, current=number == flow.phase)
            for number, (loader, state) in enumerate(
                zip(flow.loaders, saved, strict=False)
            )
        ]
        if self._by_epoch and any(resized):
            # `max_iters` counts updates of today's size, so does `iter`
            first = next(i for i, (mode, _) in enumerate(flow.flow) if mode != "val")
            self._iter = self._epoch * len(flow.loaders[first]) + self._done
            self._updates = self._saved_at = self._iter

    def _restore_loader(
        self, loader: Any, state: Mapping[str, Any], *, current: bool
    ) -> bool:
        """A loader's own place; with another batch size, the same global sample.

        Whether it has another one. The place in the epoch is that of the loader of
        the `current` phase.
        """
        before = state["samples_per_update"]
        now = getattr(loader, "samples_per_update", None)
        if not before or not now:
            before = now = 1
        if state["done"] is not None and hasattr(loader, "done"):
            loader.epoch, loader.done = state["epoch"], state["done"] * before // now
        elif current:
            self._done = self._done * before // now
        if before == now:
            return False
        self.logger.warning(
            "an update took %d samples when this was saved and takes %d now: the "
            "run goes on at the same sample, but not bit for bit",
            before,
            now,
        )
        return True

    def _restore_hooks(self) -> None:
        """Give the hooks their state, after `before_run` has made them ready."""
        states, self._pending_hooks = self._pending_hooks, None
        if states is None:
            return
        left = self._table.load_state_dict(dict(states))
        if left:
            self.logger.warning(
                "the checkpoint has state of hooks that are not here: %s",
                ", ".join(left),
            )
