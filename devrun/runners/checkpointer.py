"""`Checkpointer`: a run becomes a checkpoint, and a checkpoint the state of a run."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Mapping, Protocol, Union

from devrun import __version__, dist
from devrun.checkpoint import (
    BackgroundWriter,
    checkpoint_at,
    fits,
    has_shards,
    load_checkpoint,
    positional_optimizer_state,
    step_name,
    weights_to_cpu,
    write_checkpoint,
    write_mmcv_checkpoint,
)
from devrun.config.origin import redacted
from devrun.errors import CheckpointError, ConfigError, ConfigTypeError
from devrun.files import own_folder
from devrun.hooks.base import Hook, Priority
from devrun.hooks.checkpoint import CheckpointHook, saves_full
from devrun.hooks.dispatch import HookTable
from devrun.parallel.divided import divided_alike
from devrun.ranks import together
from devrun.run import Run
from devrun.runners.arguments import file_name, plain_meta
from devrun.runners.changes import compare_config, compare_data, log_resumed
from devrun.runners.position import position_of, take_position
from devrun.runners.saved import SavedRun, malformed, newest_checkpoint
from devrun.runners.session import Session
from devrun.runners.workflow import Workflow

CHECKPOINTS = "checkpoints"
"""Their folder in a work_dir."""
HookConfig = Union[Mapping[str, Any], Hook, None]
"""A hook, or a config of one."""


class WholeRun(Run, Protocol):
    """A run with its parts, and what a user may override, as the runners' own modules
    see it; hooks are given no more than `Run`."""

    session: Session
    table: HookTable
    workflow: Workflow | None
    checkpointer: Checkpointer
    on_grads: Callable[[], None] | None
    """Calls `after_backward`, where a hook has it."""
    not_finite: str | None
    """What of the weights was not finite at the end of the run."""

    def run_iter(self, data_batch: Any, train_mode: bool, **kwargs: Any) -> None: ...
    def call_hook(self, fn_name: str) -> None: ...
    def loader(self, data_loader: Any, *, training: bool) -> Any: ...
    def register_hook(
        self, hook: Hook, priority: int | str | Priority | None = None
    ) -> None: ...
    def register_lr_hook(self, lr_config: HookConfig) -> None: ...
    def register_momentum_hook(self, momentum_config: HookConfig) -> None: ...
    def register_optimizer_hook(self, optimizer_config: HookConfig) -> None: ...
    def register_checkpoint_hook(self, checkpoint_config: HookConfig) -> None: ...
    def register_logger_hooks(self, log_config: Mapping[str, Any] | None) -> None: ...
    def register_timer_hook(self, timer_config: HookConfig) -> None: ...
    def register_custom_hooks(
        self, custom_config: HookConfig | Sequence[HookConfig]
    ) -> None: ...


class Checkpointer:
    """Writes the checkpoints of a run, and takes one up again.

    `resume` reads and checks a checkpoint as one `SavedRun`, then gives the model, the
    optimizer and the counters what it holds. The rest waits, in that same value, for
    the loop to be there: the loaders' positions, the hooks' state and, last, the random
    streams.
    """

    def __init__(self, run: WholeRun) -> None:
        self._run = run
        self.run_id = uuid.uuid4().hex
        """What the checkpoints of this run have in common, also after a resume."""
        self.config: Mapping[str, Any] | None = None
        """The resolved config, without secrets, as it is kept in checkpoints."""
        self.last_saved_iter = -1
        """Updates done when the last checkpoint was written; -1 for none."""
        self.rewound_to: int | None = None
        """Updates done by a checkpoint that was named to resume from; later ones of
        the same run belong to what is not gone on with."""
        self.resumed_from: Path | None = None
        """The checkpoint that this run goes on from."""
        self._resumed: SavedRun | None = None
        self._positioned = True
        self._allows_changes = False
        self._writer = BackgroundWriter()
        self._in_flight = False
        """Whether any rank may still be writing in the background."""

    def keep_config(self, config: Mapping[str, Any]) -> None:
        """Keep it in the checkpoints; a resume compares it."""
        self.config = config

    def root(self, out_dir: str | os.PathLike[str] | None = None) -> Path:
        """The directory that checkpoints go to: `out_dir`, or one in `work_dir`."""
        if out_dir is not None:
            return Path(out_dir)
        if self._run.work_dir is None:
            raise ConfigError(
                "there is no work_dir to keep checkpoints in; give the runner one, "
                "or pass out_dir"
            )
        return own_folder(self._run.work_dir, CHECKPOINTS)

    def save(
        self,
        out_dir: str | os.PathLike[str] | None = None,
        filename_tmpl: str | None = None,
        save_optimizer: bool = True,
        meta: Mapping[str, Any] | None = None,
        *,
        name: str | None = None,
        background: bool = False,
        then: Callable[[], None] | None = None,
    ) -> str:
        """Write a checkpoint; its path. See `BaseRunner.save_checkpoint`."""
        if meta is not None and not isinstance(meta, Mapping):
            raise ConfigTypeError(f"meta must be a dict or None, got {meta!r}")
        run = self._run
        self.finish()
        root = self.root(out_dir)
        run.session.sync_to_host()
        position = position_of(run.state, run.workflow)
        if self._resumed is not None and not self._positioned:
            position.update(self._resumed.position)
        path = root / (name or self._file_name(position, filename_tmpl))
        facts = self._facts(position, meta or {}, None if name else path)
        if filename_tmpl is not None:
            self._write_file(path, facts, save_optimizer)
            self._call(then)
        else:
            tree = self._tree(position, facts, save_optimizer)
            run.table.call("before_save_checkpoint", run, tree)
            about = {**facts, "step": position["iter"], "run_id": self.run_id}
            self._write(path, tree, about, background, then)
        if name is None:
            self.last_saved_iter = position["iter"]
        return str(path)

    def finish(self) -> None:
        """Return when nothing is being written; all ranks must call it together.

        Raises:
            StorageError: what was written in the background is not on the disk.
        """
        if self._in_flight:
            self._in_flight = False
            saved, self.last_saved_iter = self.last_saved_iter, -1
            together(self.wait_for_writer)
            self.last_saved_iter = saved

    def check(self) -> None:
        """Raise StorageError if a write in the background has failed, without waiting;
        several ranks learn of it together, in the next save."""
        if self._writer.failed and self._run.world_size == 1:
            self.finish()

    def wait_for_writer(self) -> None:
        """The part of `finish` that this process can do alone."""
        self._writer.wait()

    def load_weights(
        self,
        filename: str | os.PathLike[str],
        map_location: Any,
        strict: bool,
        revise_keys: Sequence[Sequence[str]],
        *,
        allow_pickle: bool,
    ) -> Any:
        """Load weights only. See `BaseRunner.load_checkpoint`."""
        run = self._run
        run.logger.info("load checkpoint from %s", filename)
        loaded = load_checkpoint(
            run.model,
            str(filename),
            map_location=map_location,
            strict=strict,
            logger=run.logger,
            revise_keys=list(revise_keys),
            allow_pickle=allow_pickle,
        )
        run.session.sync_to_device()
        return loaded

    def resume(
        self,
        checkpoint: str | os.PathLike[str],
        resume_optimizer: bool = True,
        *,
        allow_changes: bool,
        allow_pickle: bool = False,
    ) -> None:
        """Go on with the run that wrote `checkpoint`. See `BaseRunner.resume`."""
        run = self._run
        if run.state.in_loop:
            raise ConfigError(
                f"resume was called in the training loop (epoch {run.epoch + 1}, "
                f"iteration {run.iter + 1}), which cannot change its place: call it "
                "before run(), or in before_run of a hook"
            )
        self.finish()
        named = str(checkpoint) != "auto"
        like = divided_alike(run.model)
        source: Any = None
        if named:
            source = dist.on_main(lambda: checkpoint_at(checkpoint))
        else:
            source = newest_checkpoint(self.folders(), run.logger, like)
        if source is None:
            return
        saved = SavedRun.read(source, allow_pickle=allow_pickle, like=like)
        seed = run.session.seed if run.session.keeps_seed else None
        compare_config(saved, self.config, seed, run.logger, allowed=allow_changes)
        run.table.call("after_load_checkpoint", run, saved.parts)
        self._load(saved, resume_optimizer)
        self._adopt(saved)
        self._allows_changes = allow_changes
        self.rewound_to = run.iter if named else None
        log_resumed(saved, run)

    def adapter_state(self) -> Mapping[str, Any]:
        """What the adapter has to take back once it is prepared."""
        return {} if self._resumed is None else self._resumed.parts.get("adapter", {})

    def take_position(self, flow: Workflow) -> None:
        """Take up, once, the saved position in the workflow and in the data."""
        if self._positioned or self._resumed is None:
            return
        self._positioned = True
        run, position = self._run, self._resumed.position
        if not self._allows_changes:
            compare_data(flow, position.get("loaders", []), self._resumed.path)
        if take_position(position, run.state, flow, run.logger):
            self.last_saved_iter = run.state.iter

    def take_hooks_and_random_state(self) -> bool:
        """Take up the rest, once the hooks are ready; whether there was any.

        The random streams come last: opening a loader draws from them.
        """
        saved, self._resumed = self._resumed, None
        if saved is None:
            return False
        left = []
        for key, state in saved.parts.get("hooks", {}).items():
            with malformed(f"the state of the hook {key}"):
                left += self._run.table.load_state_dict({key: state})
        if left:
            self._run.logger.warning(
                "the checkpoint has state of hooks that are not here: %s",
                ", ".join(left),
            )
        if self._run.workflow is not None:
            for loader in self._run.workflow.loaders:
                if getattr(loader, "done", 0):
                    loader.open()
        random = saved.random_state(self._run.rank)
        if random is not None:
            self._run.session.set_random_state(random)
        return True

    def folders(self) -> list[Path]:
        """Where this run saves to."""
        work_dir, hooks = self._run.work_dir, self._run.table.hooks
        savers = [hook for hook in hooks if isinstance(hook, CheckpointHook)]
        folders = [Path(hook.directory(work_dir)) for hook in savers]
        if work_dir is not None or not folders:
            folders.insert(0, self.root())
        return list(dict.fromkeys(folders))

    def _load(self, saved: SavedRun, optimizer: bool) -> None:
        """Weights, optimizer and adapter take what was saved, or nothing does."""
        session, parts = self._run.session, saved.parts
        adapter, wanted = session.adapter, optimizer and session.optimizer is not None
        saved.check_random_state(session.rank)

        def optimizer_loader() -> Callable[[], None]:
            if parts.get("optimizer") is None:
                raise CheckpointError(
                    f"{str(saved.path)!r} has no optimizer state; resume with "
                    "resume_optimizer=False, or take its weights with load_from"
                )
            return adapter.load_optimizer_state(
                session.wrapped, session.optimizer, parts["optimizer"]
            )

        fitting = fits(adapter.unwrap_model(session.wrapped), parts["model"])
        load = optimizer_loader() if wanted and fitting else None
        with ExitStack() as undo:
            if not fitting:  # a model with names of its own for them may take it
                before = adapter.model_state(session.wrapped)
                before = {name: value.clone() for name, value in before.items()}
                undo.callback(session.model.load_state_dict, before)
            adapter.load_model_state(session.wrapped, parts["model"], str(saved.path))
            if wanted and not fitting:
                load = optimizer_loader()
            if session.prepared:
                undo.callback(adapter.load_state_dict, adapter.state_dict())
                with malformed("the state of the device adapter"):
                    adapter.load_state_dict(parts.get("adapter", {}))
            undo.pop_all()
        if load is not None:
            load()
        session.sync_to_device()

    def _adopt(self, saved: SavedRun) -> None:
        """The counters and what else says which run this is."""
        run = self._run
        self.run_id = saved.run_id or self.run_id
        self.resumed_from = saved.path
        run.meta.update(saved.meta)
        counters = ("epoch", "iter", "done")
        run.state.seek(*(saved.position[name] for name in counters))
        self.last_saved_iter = run.state.iter
        if saved.seed is not None:
            run.session.take_seed(saved.seed)
        for name in ("model", "optimizer"):  # they have what they need
            saved.parts.pop(name, None)
        self._resumed, self._positioned = saved, False

    def _file_name(self, position: Mapping[str, Any], template: str | None) -> str:
        if template is None:
            return step_name(position["iter"])
        by_epoch = self._run.state.by_epoch
        return file_name(template, position["epoch" if by_epoch else "iter"])

    def _facts(
        self, position: Mapping[str, Any], meta: Mapping[str, Any], path: Path | None
    ) -> dict[str, Any]:
        """The `meta` of a checkpoint; one that is the latest names itself."""
        run = self._run
        messages = dict(run.meta.get("hook_msgs", {}))
        if path is not None:
            messages["last_ckpt"] = str(path)
        return {
            **redacted(plain_meta({**run.meta, **meta})),
            "hook_msgs": redacted(messages),
            "devrun_version": __version__,
            "epoch": position["epoch"],
            "iter": position["iter"],
            "device": run.adapter.name,
            "emulated": run.adapter.emulated,
        }

    def _write(
        self,
        path: Path,
        tree: Mapping[str, Any],
        about: Mapping[str, Any],
        background: bool,
        then: Callable[[], None] | None,
    ) -> None:
        """Write `tree`, of which each process has its pieces if any is spread."""

        def write() -> None:
            if background:
                done = then if dist.is_main() else None
                self._writer.save(path.parent, path.name, tree, about, done)
            else:
                write_checkpoint(path.parent, path.name, tree, about)

        (together if has_shards(tree) else dist.on_main)(write)
        self._in_flight = background
        if not background:
            self._call(then)

    def _call(self, then: Callable[[], None] | None) -> None:
        """Call it on rank 0, in the background."""
        if then is not None:
            dist.on_main(lambda: self._writer.call(then))
            self._in_flight = True

    def _write_file(
        self, path: Path, facts: dict[str, Any], save_optimizer: bool
    ) -> None:
        """In MMCV's layout."""
        session = self._run.session
        adapter, classes = session.adapter, getattr(session.model, "CLASSES", None)
        if classes is not None:
            facts.setdefault("CLASSES", classes)
        weights, state = adapter.model_state(session.wrapped), None
        if save_optimizer and session.optimizer is not None:
            state = adapter.optimizer_state(session.wrapped, session.optimizer)
            state = positional_optimizer_state(state)
        dist.on_main(
            lambda: write_mmcv_checkpoint(path, weights_to_cpu(weights), state, facts)
        )

    def _tree(
        self, position: dict[str, Any], facts: dict[str, Any], save_optimizer: bool
    ) -> dict[str, Any]:
        """Everything a resumed run needs, part by part; collective over the ranks."""
        run, waiting = self._run, self._resumed
        session, adapter = run.session, run.session.adapter
        hooks = None if waiting is None else dict(waiting.parts.get("hooks", {}))
        kept = None if waiting is None else waiting.random_state(run.rank)
        full = saves_full(run) is True
        tree: dict[str, Any] = {
            "model": adapter.model_state(session.wrapped, full=full),
            "adapter": adapter.state_dict() or dict(self.adapter_state()),
            "hooks": run.table.state_dict() if hooks is None else hooks,
            "trainer": {
                "position": position,
                "meta": facts,
                "seed": session.seed,
                "by_epoch": run.state.by_epoch,
                "config": None if self.config is None else dict(self.config),
            },
        }
        if save_optimizer and session.optimizer is not None:
            tree["optimizer"] = adapter.optimizer_state(
                session.wrapped, session.optimizer, full=full
            )
        mine = session.random_state() if kept is None else kept
        for rank, state in enumerate(dist.gather_objects(mine)):
            tree[f"rng-rank{rank:05d}"] = state
        return tree
