"""`BaseRunner`: MMCV's runner. Each method asks the part of the run that does it."""

from __future__ import annotations

import contextlib
import logging
import os
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Any

from torch import nn

from devrun.config.revisions import MODULE
from devrun.devices.base import DeviceAdapter
from devrun.hooks.base import Hook
from devrun.hooks.dispatch import HookTable
from devrun.hooks.processes import StopTogetherHook
from devrun.log.buffer import LogBuffer
from devrun.log.logger import get_logger
from devrun.models.step_function import own_loaders
from devrun.run import RunState
from devrun.runners import loops, registration
from devrun.runners.arguments import (
    check_arguments,
    check_fraction,
    check_seed,
    made_work_dir,
)
from devrun.runners.checkpointer import Checkpointer
from devrun.runners.helpers import get_time_str
from devrun.runners.notebook import html_of
from devrun.runners.registration import HookConfig
from devrun.runners.session import Session
from devrun.runners.workflow import Workflow
from devrun.step import StepOutput, UpdatePolicy


def _of(path: str, doc: str, *, writable: bool = False) -> Any:
    """A value that a part of the run owns, under MMCV's name."""
    part, name = path.split(".")

    def write(runner: BaseRunner, value: Any) -> None:
        setattr(getattr(runner, part), name, value)

    return property(attrgetter(path), write if writable else None, doc=doc)


class BaseRunner(ABC):
    """What the epoch and the iteration runner share.

    The constructor and the command line meet here: `device` names the adapter. The
    model is placed and wrapped at the first `run`, when the optimizer's settings are
    known; `model` stays the user's module.

    Args:
        model: a module with MMCV's `train_step`, one whose forward returns a `loss`,
            or any module together with `loss`.
        batch_processor: MMCV's deprecated `f(model, batch, train_mode)`.
        optimizer: one, a dict of them, or None when nothing is trained.
        work_dir: made if missing; None writes nothing.
        logger: a `logging.Logger`; by default the one named `devrun`.
        meta: facts kept in every checkpoint.
        max_iters, max_epochs: at most one of them.
        device: a name (`cpu`, `cuda:1`, `auto`, ...), a mapping with `type` and
            options, or an adapter.
        parallel: how several processes train it, such as `dict(type="fsdp")`.
        loss: `f(output, target)` for a plain module.
        seed: of the random streams, the data order and the samples' randomness. None
            leaves the streams alone and takes torch's present seed for the data.
        optimizer_config: as `register_optimizer_hook` takes it.
        limit_train, limit_val: iterations of an epoch, and of an evaluation or a val
            epoch, at the most; or a fraction of them, such as 0.1.

    Raises:
        ConfigError: an argument cannot be used.
        DeviceUnavailableError: the device is not here.
    """

    _by_epoch = True
    data_batch: Any
    """What the loader gave for the iteration in progress; not set between two."""

    def __init__(
        self,
        model: nn.Module,
        batch_processor: Callable[..., Any] | None = None,
        optimizer: Any = None,
        work_dir: str | os.PathLike[str] | None = None,
        logger: logging.Logger | None = None,
        meta: dict[str, Any] | None = None,
        max_iters: int | None = None,
        max_epochs: int | None = None,
        *,
        device: Any = "auto",
        parallel: Any = None,
        loss: Callable[..., Any] | None = None,
        seed: int | None = None,
        optimizer_config: HookConfig = None,
        limit_train: float | None = None,
        limit_val: float | None = None,
    ) -> None:
        check_arguments(optimizer, logger, meta, max_iters, max_epochs)
        check_fraction("limit_train", limit_train)
        check_fraction("limit_val", limit_val)
        check_seed(seed)
        self.logger = logger if logger is not None else get_logger()
        self.meta: dict[str, Any] = dict(meta or {})
        self.meta.setdefault("hook_msgs", {})
        self.work_dir = made_work_dir(work_dir)
        self.timestamp = get_time_str()
        self.state = RunState(self._by_epoch, max_epochs, max_iters)
        self.session = Session(
            model,
            optimizer,
            device=device,
            parallel=parallel,
            loss=loss,
            batch_processor=batch_processor,
            seed=seed,
            limits=(limit_train, limit_val),
            needs_length=self._by_epoch,
        )
        self.table = HookTable(self.adapter.capabilities, self.adapter.name)
        self.checkpointer = Checkpointer(self)
        self.workflow: Workflow | None = None
        self.log_buffer = LogBuffer()
        self.outputs: StepOutput = StepOutput(loss=None, log_vars={}, num_samples=0)
        self.data_loader: Any = None
        self.eval_contexts: list[Callable[[Any], Any]] = []
        self.eval_metrics: list[Any] = []
        self.on_grads: Callable[[], None] | None = None
        self.not_finite: str | None = None
        self.register_optimizer_hook(optimizer_config)
        if self.session.contract is not None:
            self.session.contract.join(self, optimizer, loss)
        if self.world_size > 1:
            self.register_hook(StopTogetherHook())

    @abstractmethod
    def train(self, data_loader: Any, **kwargs: Any) -> None:
        """One train phase: an epoch, or an iteration."""

    @abstractmethod
    def val(self, data_loader: Any, **kwargs: Any) -> None:
        """One val phase: an epoch, or an iteration."""

    def run(
        self,
        data_loaders: Sequence[Any] | None = None,
        workflow: Sequence[Any] = (("train", 1),),
        limit: int | None = None,
        **kwargs: Any,
    ) -> None:
        """Run `workflow`, one loader for each phase, to the end of the schedule.

        Args:
            data_loaders: a list of torch DataLoaders; a `StepFunction` needs none.
            workflow: pairs of mode and number of epochs, or of iterations where the
                runner counts these: `[('train', 2), ('val', 1)]`.
            limit: deprecated, also as `max_epochs` or `max_iters`; give it to the
                constructor.
            kwargs: for the step of the model.

        Raises:
            ConfigError: loaders and workflow do not fit, or no limit was given.
        """
        self._take_limit(kwargs.pop(self.state.limit_name, limit))
        loaders = own_loaders(self.model) if data_loaders is None else data_loaders
        loops.run(self, loaders, workflow, kwargs)

    def _take_limit(self, limit: int | None) -> None:
        """The limit as MMCV's `run` still takes it."""
        if limit is not None:
            name = self.state.limit_name
            warnings.warn(
                f"{name} belongs to the constructor of the runner",
                DeprecationWarning,
                stacklevel=3,
            )
            setattr(self.state, name, limit)

    run_iter = loops.run_iter

    def call_hook(self, fn_name: str) -> None:
        """Call the stage `fn_name` of every hook that has it."""
        # Here, not in the loops: a user's own loop ends its phases by it too.
        with self.state.ending(fn_name):
            self.table.call(fn_name, self)

    def request_stop(self, reason: Any, *, alone: bool = False) -> None:
        """End the run in order after the iteration in progress.

        With several processes, all of them must ask in the same iteration, as a hook
        does that looks at what they agree on. One that was asked `alone`, as by a
        signal, goes on until they have told each other, which takes about a second.
        """
        self.state.request_stop(str(reason), alone=alone and self.world_size > 1)

    epoch: int = _of("state.epoch", "Completed train epochs.")
    iter: int = _of("state.iter", "Completed optimizer updates.")
    inner_iter: int = _of("state.inner_iter", "Iteration of the epoch, or the phase.")
    max_epochs: int | None = _of("state.max_epochs", "Train epochs of the whole run.")
    max_iters: int | None = _of("state.max_iters", "Updates of the whole run.")
    mode: str | None = _of(
        "state.mode", "`train` or `val`; None before the first phase.", writable=True
    )
    stop_reason: str | None = _of("state.stop_reason", "What `request_stop` was given.")
    stop_wanted: str | None = _of(
        "state.stop_wanted", "Why this process alone has to end, until all know."
    )
    counts_epochs: bool = _of(
        "state.by_epoch", "Whether intervals count epochs unless they say otherwise."
    )
    # What the loops of MMCV's users write.
    _epoch = _of("state.epoch", "As `epoch`.", writable=True)
    _iter = _of("state.iter", "As `iter`.", writable=True)
    _inner_iter = _of("state.inner_iter", "As `inner_iter`.", writable=True)
    _max_epochs = _of("state.max_epochs", "As `max_epochs`.", writable=True)
    _max_iters = _of("state.max_iters", "As `max_iters`.", writable=True)

    @property
    def should_stop(self) -> bool:
        """Whether the loop ends at the next iteration boundary."""
        return self.state.stop_reason is not None

    model: nn.Module = _of(
        "session.model", "The user's; replaceable until prepared.", writable=True
    )
    optimizer: Any = _of(
        "session.optimizer", "The optimizer, a dict of them, or None.", writable=True
    )
    batch_processor: Any = _of("session.batch_processor", "As it was given, or None.")
    adapter: DeviceAdapter = _of("session.adapter", "The device's adapter.")
    policy: UpdatePolicy = _of("session.policy", "How an update is done.")
    seed: int = _of("session.seed", "Of the data order and of samples, on every rank.")
    rank: int = _of("session.rank", "This process, 0 to `world_size` - 1.")
    world_size: int = _of("session.world_size", "Number of processes.")
    train_steps: int = _of("state.train_steps", "Training steps of the adapter.")
    eval_steps: int = _of("session.eval_steps", "Evaluation steps, also of hooks.")

    @property
    def model_name(self) -> str:
        """Class name of the model."""
        return type(self.model).__name__

    _model_name = model_name

    @property
    def own_loop(self) -> bool:
        """Whether a user's subclass has its own `train` or `run_iter`."""
        methods = (type(self).train, type(self).run_iter)
        return any(not method.__module__.startswith("devrun.") for method in methods)

    def current_lr(self) -> list[float] | dict[str, list[float]]:
        """Learning rate of each parameter group (by name for several optimizers)."""
        return self.session.of_groups(lambda group: group["lr"])

    def current_momentum(self) -> list[float] | dict[str, list[float]]:
        """Momentum, first beta, or 0 of each parameter group."""
        return self.session.of_groups(
            lambda group: group.get("momentum", group.get("betas", (0,))[0])
        )

    def prepare(self) -> None:
        """Put model and optimizer on the device; `run` does it when it is still due."""
        if not self.session.prepared:
            self.session.prepare(self.checkpointer.adapter_state())

    def eval_step(self, data_batch: Any, mode: str = "val") -> StepOutput:
        """One step without gradients, for hooks; `predict` asks for no loss."""
        self.prepare()
        return self.session.eval_step(data_batch, mode)

    def loader(self, data_loader: Any, *, training: bool) -> Any:
        """`data_loader` as the device wants it; the same one each time."""
        self.prepare()
        return self.session.loader(data_loader, training=training)

    def prepare_eval_loader(self, data_loader: Any) -> Any:
        """`data_loader` as the device wants it for an evaluation."""
        return self.loader(data_loader, training=False)

    @contextlib.contextmanager
    def evaluating(self) -> Iterator[None]:
        """Evaluation mode, with what hooks put in `eval_contexts` (such as EMA)."""
        self.prepare()
        with contextlib.ExitStack() as stack:
            for context in self.eval_contexts:
                stack.enter_context(context(self))
            stack.enter_context(self.session.evaluating())
            yield

    @contextlib.contextmanager
    def trying_out(self) -> Iterator[None]:
        """Evaluation mode that no hook takes part in; random streams stay as before."""
        self.prepare()
        with self.session.keeping_random_state(), self.session.evaluating():
            yield

    def close(self) -> None:
        """Release the device; safe twice."""
        self.adapter.teardown()

    def save_checkpoint(
        self,
        out_dir: str | os.PathLike[str] | None = None,
        filename_tmpl: str | None = None,
        save_optimizer: bool = True,
        meta: Mapping[str, Any] | None = None,
        create_symlink: bool = True,
        *,
        name: str | None = None,
        background: bool = False,
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
            background: return once the state is copied, and write meanwhile. A `.pth`
                file is always waited for.
            then: called on rank 0 when it is durable, in the background, and waited
                for as such a write is.

        Raises:
            StorageError: it could not be written, or the one before in the
                background could not; what was there before is whole.
        """
        return self.checkpointer.save(
            out_dir,
            filename_tmpl,
            save_optimizer,
            meta,
            name=name,
            background=background,
            then=then,
        )

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
        return self.checkpointer.load_weights(
            filename, map_location, strict, revise_keys, allow_pickle=allow_pickle
        )

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
            checkpoint: a directory or MMCV `.pth` file; of a run's `work_dir` its
                newest whole one; `auto` for that of this `work_dir`, if there is any.
            resume_optimizer: False keeps the optimizer as it is.
            map_location: accepted as in MMCV; state is read to the host first.
            allow_changes: go on though the config, the seed, the data or the size
                of an update are others than those of the checkpoint.
            allow_pickle: run the code that an old `.pth` file names.

        Raises:
            CheckpointError: it is damaged, or does not fit this run.
        """
        self.checkpointer.resume(
            checkpoint,
            resume_optimizer,
            allow_changes=allow_changes,
            allow_pickle=allow_pickle,
        )

    def __repr__(self) -> str:
        limit = "" if self.max_iters is None else f" of {self.max_iters}"
        return (
            f"<{type(self).__name__}: {self.model_name} on {self.adapter.name}, "
            f"{self.epoch} epochs and {self.iter}{limit} updates done>"
        )

    def _repr_html_(self) -> str:
        return html_of(self)

    hooks: list[Hook] = _of("table.hooks", "All hooks in the order they are called.")
    _hooks = hooks

    def get_hook_info(self) -> str:
        """Each hook with its priority and stages, as text."""
        return "\n".join(self.table.rows())

    register_hook = registration.register_hook
    register_hook_from_cfg = registration.register_hook_from_cfg
    register_lr_hook = registration.register_lr_hook
    register_momentum_hook = registration.register_momentum_hook
    register_optimizer_hook = registration.register_optimizer_hook
    register_checkpoint_hook = registration.register_checkpoint_hook
    register_logger_hooks = registration.register_logger_hooks
    register_timer_hook = registration.register_timer_hook
    register_profiler_hook = registration.register_profiler_hook
    register_custom_hooks = registration.register_custom_hooks
    register_training_hooks = registration.register_training_hooks
