"""`Persistence`: how a saved run comes back."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from devrun.checkpoint import (
    Checkpoint,
    fits,
    host_rng_state,
    load_checkpoint,
    load_state_dict,
    mmcv_optimizer_tree,
    prepare_optimizer_state,
    read_checkpoint,
    read_mmcv_checkpoint,
    set_host_rng_state,
)
from devrun.config.revisions import MODULE
from devrun.errors import CheckpointError
from devrun.hooks.checkpoint import CheckpointHook
from devrun.runners.changes import (
    ALLOW,
    Change,
    config_changes,
    environment_changes,
    refusal,
)
from devrun.runners.newest import newest_checkpoint
from devrun.runners.saved import SavedRun, loader_facts, malformed
from devrun.runners.saving import CHECKPOINTS, Saving
from devrun.runners.workflow import Workflow

__all__ = ["CHECKPOINTS", "Persistence"]


class Persistence(Saving):
    """Resuming, beside saving; mixed into the runner, which owns all the state."""

    keeps_seed: bool
    """Whether a resumed run keeps its own seed, rather than take the checkpoint's."""
    rewound_to: int | None = None
    """Updates done by a checkpoint that was named to resume from; later ones of the
    same run belong to what is not gone on with."""
    _allows_changes = False
    _resumed_from: Path | None = None

    def load_checkpoint(
        self,
        filename: str | os.PathLike[str],
        map_location: Any = "cpu",
        strict: bool = False,
        revise_keys: Sequence[Sequence[str]] = MODULE,
        *,
        allow_pickle: bool = False,
    ) -> Any:
        """Load weights only, from a checkpoint of devrun, MMCV or safetensors.

        `allow_pickle` runs the code that an old `.pth` file names.

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
            allow_pickle=allow_pickle,
        )
        if self._prepared:
            self.adapter.sync_to_device(self._step_model)
        return loaded

    def resume(
        self,
        checkpoint: str | os.PathLike[str],
        resume_optimizer: bool = True,
        map_location: Any = "default",
        *,
        allow_changes: bool = False,
        allow_pickle: bool = False,
    ) -> None:
        """Continue the run that wrote `checkpoint`, exactly where it stood.

        The weights, the optimizer and the counters are back at once; the hooks' state
        and the random streams when the loop starts. Where anything does not fit,
        nothing has changed.

        Args:
            checkpoint: a directory or MMCV `.pth` file, or `auto` for the newest
                whole one in `work_dir`, if there is any.
            resume_optimizer: False keeps the optimizer as it is.
            map_location: accepted as in MMCV; state is read to the host first.
            allow_changes: go on though the config, the seed, the data or the size
                of an update are others than those of the checkpoint.
            allow_pickle: run the code that an old `.pth` file names.

        Raises:
            CheckpointError: it is damaged, or does not fit this run.
        """
        self.finish_saving()
        explicit = str(checkpoint) != "auto"
        source = Path(checkpoint) if explicit else self._newest()
        if source is None:
            return
        path = source if isinstance(source, Path) else source.path
        tree, saved, changes = self._read(source, allow_pickle)
        self._compare_config(saved, path, allow_changes)
        self._table.call("after_load_checkpoint", self, tree)
        self._take(tree, saved, path, resume_optimizer)
        self._allows_changes, self._resumed_from = allow_changes, path
        self.rewound_to = self._iter if explicit else None
        if saved.by_epoch not in (None, self._by_epoch):
            self.logger.warning(
                "saved by a runner that counts %s, resumed by one that counts %s: the "
                "updates and the samples seen are kept, epochs and phases begin anew",
                *(("epochs", "iterations") if saved.by_epoch else _REVERSED),
            )
        if changes:
            self.logger.warning(
                "resumed at the same sample, but not bit for bit: %s",
                ", ".join(map(str, changes)),
            )
        self.logger.info(
            "resumed epoch: %d, iter: %d from %s", self._epoch, self._iter, path
        )

    def _read(
        self, source: Path | Checkpoint, allow_pickle: bool
    ) -> tuple[dict[str, Any], SavedRun, list[Change]]:
        """The parts of a checkpoint, what its run was, and what that makes inexact."""
        if isinstance(source, Path) and source.suffix == ".pth":
            mmcv = read_mmcv_checkpoint(source, allow_pickle=allow_pickle)
            tree = {"model": mmcv.state_dict, "optimizer": mmcv}
            return tree, SavedRun.of_mmcv(mmcv), []
        found = read_checkpoint(source) if isinstance(source, Path) else source
        path = found.path
        tree = dict(found.parts)
        for part in _REQUIRED:
            if part not in tree:
                raise CheckpointError(
                    f"{str(path)!r} has no part {part!r}: no run can go on from it; "
                    "take its weights with load_from"
                )
        changes = environment_changes(
            found.manifest.environment, self.adapter.name, self.adapter.emulated
        )
        ranks = sum(part.startswith("rng-rank") for part in tree)
        if ranks not in (0, self._world_size):
            old, new = str(ranks), str(self._world_size)
            changes.append(Change("processes", old, new, fatal=False))
        tree["run_id"] = found.manifest.run_id
        return tree, SavedRun.of(tree["trainer"], path), changes

    def _compare_config(self, saved: SavedRun, path: Path, allowed: bool) -> None:
        """Show every difference; refuse what would make this another run."""
        changes = config_changes(saved.config, self.config)
        if self.keeps_seed and saved.seed not in (None, self.seed):
            changes.append(Change("seed", str(saved.seed), str(self.seed), fatal=True))
        fatal = [change for change in changes if change.fatal]
        if fatal and not allowed:
            raise CheckpointError(refusal(path, fatal))
        for change in changes:
            level = self.logger.warning if change.fatal else self.logger.info
            level("config changed: %s", change)

    def _take(
        self, tree: Mapping[str, Any], saved: SavedRun, path: Path, optimizer: bool
    ) -> None:
        """Everything in `tree` becomes the runner's own, or nothing does."""
        wanted = optimizer and self.optimizer is not None
        fitting = fits(self.model, tree["model"])
        load_optimizer = None
        if wanted and fitting:
            load_optimizer = self._optimizer_load(tree.get("optimizer"), path)
        rng = tree.get(f"rng-rank{self._rank:05d}")
        _check_rng(rng)
        with ExitStack() as undo:
            if not fitting:  # a model with names of its own for them may take it
                before = {k: v.clone() for k, v in self.model.state_dict().items()}
                undo.callback(self.model.load_state_dict, before)
            load_state_dict(
                self.model,
                tree["model"],
                strict=True,
                logger=self.logger,
                source=str(path),
            )
            if wanted and not fitting:
                load_optimizer = self._optimizer_load(tree.get("optimizer"), path)
            if self._prepared:
                state = self.adapter.state_dict()
                undo.callback(self.adapter.load_state_dict, state)
                self._load_adapter(tree.get("adapter", {}))
            else:
                self._pending_adapter = tree.get("adapter", {})
            undo.pop_all()
        if load_optimizer is not None:
            load_optimizer()
        self.run_id = tree.get("run_id") or self.run_id
        self.meta.update(saved.meta)
        position = saved.position
        self._epoch, self._iter = position["epoch"], position["iter"]
        self._updates, self._done = self._iter, position["done"]
        self._saved_at = self._iter
        self._rollbacks = max(saved.rollbacks, self._rollbacks)
        self._pending_position = position
        self._pending_hooks = tree.get("hooks", {})
        self._pending_rng = rng
        if saved.seed is not None and not self.keeps_seed:
            # without a seed of its own, a run takes up the order of the data
            self.seed = self.adapter.data_seed = saved.seed
        if self._prepared:
            self.adapter.sync_to_device(self._step_model)

    def _load_adapter(self, state: Mapping[str, Any]) -> None:
        with malformed("the state of the device adapter"):
            self.adapter.load_state_dict(state)

    def _optimizer_load(self, state: Any, path: Path) -> Any:
        """The function that loads the state, once it is known to fit."""
        if state is None:
            raise CheckpointError(
                f"{str(path)!r} has no optimizer state; resume with "
                "resume_optimizer=False, or take its weights with load_from"
            )
        if not isinstance(state, Mapping):
            state = mmcv_optimizer_tree(self.model, self.optimizer, state)
        return prepare_optimizer_state(self.model, self.optimizer, state)

    def _newest(self) -> Checkpoint | None:
        """The newest whole checkpoint of the places that this run saves to."""
        hooks = [h for h in self._table.hooks if isinstance(h, CheckpointHook)]
        places = [Path(hook.directory(self.work_dir)) for hook in hooks]
        if self.work_dir is not None or not places:
            places.insert(0, self.checkpoint_root())
        return newest_checkpoint(list(dict.fromkeys(places)), self.logger)

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
        self._compare_data(flow, saved)
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

    def _compare_data(self, flow: Workflow, saved: Sequence[Mapping[str, Any]]) -> None:
        """Refuse other training data, or another size of the updates."""
        changes = []
        for (mode, _), loader, old in zip(flow.flow, flow.loaders, saved, strict=False):
            new = loader_facts(loader, mode)
            if "val" in (mode, old.get("mode")):
                continue
            changes += [
                Change(
                    f"{name} of the training data", str(old[key]), str(new[key]), True
                )
                for key, name in _DATA_FACTS.items()
                if old.get(key) not in (None, new[key]) and new[key] is not None
            ]
        if changes and not self._allows_changes:
            listed = ", ".join(map(str, changes))
            raise CheckpointError(
                f"this is not the run that wrote {str(self._resumed_from)!r}: "
                f"{listed}; {ALLOW}"
            )

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
        left = []
        for key, state in states.items():
            with malformed(f"the state of the hook {key}"):
                left += self._table.load_state_dict({key: state})
        if left:
            self.logger.warning(
                "the checkpoint has state of hooks that are not here: %s",
                ", ".join(left),
            )


_REQUIRED = ("model", "trainer", "hooks", "adapter", "rng-rank00000")
_REVERSED = ("iterations", "epochs")
_DATA_FACTS = {
    "dataset": "class",
    "samples": "number of samples",
    "samples_per_update": "samples an update",
}


def _check_rng(state: Any) -> None:
    """Refuse random state that could not be put back when the loop starts."""
    if state is None:
        return
    before = host_rng_state()
    with malformed("the state of the random streams"):
        set_host_rng_state(state["host"])
        set_host_rng_state(before)
        dict(state["device"])
