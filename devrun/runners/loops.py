"""The loops: what happens between `before_run` and `after_run`, as text.

    before_run
    while not finished:
        for mode, times in workflow:
            repeat times: train or val      an epoch, or an iteration
    after_run

A loop writes the `RunState` and asks the runner for the step, so that a `run_iter`,
`train` or `val` of a user's subclass takes part.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from time import perf_counter
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from devrun.errors import (
    ConfigError,
    DataError,
    DeviceMemoryError,
    DivergedError,
    HangError,
    UnsupportedFeatureError,
)
from devrun.models.finite import not_finite
from devrun.peers import lost_peer
from devrun.runners.agreement import check_data, check_run
from devrun.runners.arguments import describe_loader, length
from devrun.runners.checkpointer import WholeRun
from devrun.runners.helpers import get_host_info
from devrun.runners.workflow import IterLoader, Workflow, check_phases

FEW_UPDATES = 10
"""A run of fewer, such as a dry one, may end while a loss scale is still searched."""


def run_iter(run: WholeRun, data_batch: Any, train_mode: bool, **kwargs: Any) -> None:
    """One step through the adapter; its values go to the log buffer."""
    session, state = run.session, run.state
    if kwargs:
        session.step_module.step_kwargs = kwargs
    if train_mode:
        began = perf_counter()
        outputs = session.adapter.train_step(
            session.wrapped, data_batch, session.optimizer, run.on_grads
        )
        state.clock.compute += perf_counter() - began
        state.train_steps += 1
    else:
        outputs = session.adapter.eval_step(session.wrapped, data_batch)
    run.outputs = outputs
    items = {"loss": outputs["num_items"]} if "num_items" in outputs else None
    run.log_buffer.update(outputs["log_vars"], outputs["num_samples"], items)


def train_epoch(run: WholeRun, loader: Any, **kwargs: Any) -> None:
    """One train epoch, from where a resumed run left it::

    before_train_epoch
    for batch in loader:
        before_train_iter; step; after_train_iter
    after_train_epoch
    """
    state = run.state
    state.mode, run.data_loader = "train", loader
    run.session.wrapped.train()
    if state.max_epochs is not None:
        state.max_iters = state.max_epochs * len(loader)
    batches = _open_epoch(run, loader)
    before = run.table.calls["before_train_iter"]
    after = run.table.calls["after_train_iter"]
    # unpacking no arguments in each iteration would cost as much as a hook
    run_iter: Any = partial(run.run_iter, **kwargs) if kwargs else run.run_iter
    for state.inner_iter, run.data_batch in batches:
        for call in before:
            call(run)
        run_iter(run.data_batch, train_mode=True)
        state.done += 1
        state.updates += 1
        for call in after:
            call(run)
        del run.data_batch
        state.iter += 1
        if state.stop_reason is not None:
            state.cut_short = True
            return
    run.call_hook("after_train_epoch")
    state.epoch += 1
    state.done = 0


@torch.no_grad()
def val_epoch(run: WholeRun, loader: Any, **kwargs: Any) -> None:
    """One pass over the data without training::

    before_val_epoch
    for batch in loader:
        before_val_iter; step; after_val_iter
    after_val_epoch
    """
    state = run.state
    state.mode, run.data_loader = "val", loader
    with run.evaluating():
        run.call_hook("before_val_epoch")
        for state.inner_iter, run.data_batch in enumerate(loader):
            run.call_hook("before_val_iter")
            run.run_iter(run.data_batch, train_mode=False, **kwargs)
            run.call_hook("after_val_iter")
            del run.data_batch
            if state.stop_reason is not None:
                state.cut_short = True
                return
        run.call_hook("after_val_epoch")


def train_iter(run: WholeRun, loader: Any, **kwargs: Any) -> None:
    """One update with the next batch: before_train_iter; step; after_train_iter."""
    state = run.state
    if state.mode != "train":
        run.session.wrapped.train()
    state.mode, run.data_loader = "train", loader
    run.data_batch = next(loader)
    state.epoch = loader.epoch
    for call in run.table.calls["before_train_iter"]:
        call(run)
    run.run_iter(run.data_batch, train_mode=True, **kwargs)
    state.updates += 1
    state.phase_over = True
    for call in run.table.calls["after_train_iter"]:
        call(run)
    state.phase_over = False
    del run.data_batch
    state.inner_iter += 1
    state.iter += 1


@torch.no_grad()
def val_iter(run: WholeRun, loader: Any, **kwargs: Any) -> None:
    """One step without training: before_val_iter; step; after_val_iter."""
    state = run.state
    state.mode, run.data_loader = "val", loader
    # with fewer samples than processes, the others have them all
    share = length(loader, needed=False) != 0
    run.data_batch = next(loader) if share else None
    with run.evaluating():
        run.call_hook("before_val_iter")
        if share:
            run.run_iter(run.data_batch, train_mode=False, **kwargs)
        run.call_hook("after_val_iter")
    del run.data_batch
    state.inner_iter += 1


def run(
    run: WholeRun,
    data_loaders: Sequence[Any],
    workflow: Sequence[Any],
    kwargs: dict[str, Any],
) -> None:
    """Everything ready for `before_run`, then the loop.

    Raises:
        ConfigError: loaders and workflow do not fit, or no limit was given.
    """
    flow = _ready_workflow(run, data_loaders, workflow)
    run.logger.info("%s", "\n".join(_first_lines(run, flow.flow, flow.loaders)))
    names = ", ".join(type(hook).__name__ for hook in run.table.hooks)
    rows = "\n".join(run.table.rows())
    run.logger.info("%s", rows, extra={"brief": f"hooks: {names}"})
    _run_phases(run, flow, data_loaders, kwargs)


def _ready_workflow(
    run: WholeRun, data_loaders: Sequence[Any], workflow: Sequence[Any]
) -> Workflow:
    """The phases with their loaders, ready to read."""
    name = run.state.limit_name
    if getattr(run.state, name) is None:
        raise ConfigError(f"{type(run).__name__} needs {name}; none was given")
    flow = Workflow(workflow, data_loaders)
    check_phases(flow.flow, type(run))
    check_run(run, flow)
    run.session.count_batches(flow.loaders, flow.flow)
    _take_loaders(run, flow, data_loaders)
    return flow


def _take_loaders(run: WholeRun, flow: Workflow, data_loaders: Sequence[Any]) -> None:
    """Give each phase its loader as the device wants it, in the order of the seed."""
    flow.loaders = [
        run.loader(loader, training=mode != "val")
        for loader, (mode, _) in zip(data_loaders, flow.flow)
    ]
    for prepared, (mode, _) in zip(flow.loaders, flow.flow):
        if mode != "val":
            prepared.clock = run.state.clock
    check_data(run, flow)
    if run.state.by_epoch:
        trains = (i for i, (mode, _) in enumerate(flow.flow) if mode == "train")
        if (first := next(trains, None)) is not None:
            epochs = run.state.max_epochs or 0
            run.state.max_iters = epochs * len(flow.loaders[first])
    else:  # one for all phases of a loader: they go through its data together
        for loader in flow.loaders:
            if loader.in_step is not None:
                raise UnsupportedFeatureError(
                    "a val phase counted in iterations cannot be combined with weights "
                    "divided over processes: use evaluation, or epochs",
                    key="workflow",
                )
        endless = {id(loader): IterLoader(loader) for loader in flow.loaders}
        flow.loaders = [endless[id(loader)] for loader in flow.loaders]


def _run_phases(
    run: WholeRun, flow: Workflow, data_loaders: Sequence[Any], kwargs: dict[str, Any]
) -> None:
    """Call `before_run`, the phases in turn, and `after_run`."""
    run.workflow, seed = flow, run.session.seed
    run.checkpointer.take_position(flow)
    stage = run.table.calls["after_backward"]
    run.on_grads = partial(run.call_hook, "after_backward") if stage else None
    try:
        run.call_hook("before_run")
        # a hook may have resumed in before_run, with the data order of that run
        if run.session.seed != seed:
            _take_loaders(run, flow, data_loaders)
        run.checkpointer.take_position(flow)
        resumed = run.checkpointer.take_hooks_and_random_state()
        run.table.refresh()  # hooks may narrow their stages in before_run
        if run.state.finished:
            run.logger.warning(
                "nothing is left to train: %d epochs and %d iterations are done; "
                "raise %s to go on",
                run.epoch,
                run.iter,
                run.state.limit_name,
            )
        _train(run, flow, kwargs, resumed)
        run.logger.info("stopped: %s", run.state.why_ended)
        run.session.sync_to_host()
        _check_result(run)
        run.call_hook("after_run")
        run.checkpointer.finish()
    except BaseException as error:
        run.table.tell(run, error)
        if (explained := _explained(run, error)) is not None:
            raise explained from error
        raise
    finally:
        run.session.close_loaders()


def _check_result(run: WholeRun) -> None:
    """Warn about weights that are not finite; a run without any update is an error."""
    left_out = run.session.adapter.stats().get("skipped_updates", 0)
    if left_out == run.iter >= FEW_UPDATES:
        what = f"all {left_out} updates were left out: nothing has been trained"
        if run.policy.nonfinite not in ("warn", "ignore"):
            raise DivergedError(f"{what}; the warnings above say why")
        run.logger.warning("%s", what)
    run.not_finite = not_finite(run.model)
    if run.not_finite is not None:
        run.logger.warning(
            "%s has nan or infinite values at the end of this run, and so has what "
            "was saved since it got them: nonfinite is %r",
            run.not_finite,
            run.policy.nonfinite,
        )


def _train(
    run: WholeRun, flow: Workflow, kwargs: dict[str, Any], resumed: bool
) -> None:
    """All phases; where updates count, as one epoch that a resumed run has begun."""
    run.state.in_loop = True
    try:
        if not run.state.by_epoch:
            with _rng_kept(run, resumed):
                run.call_hook("before_epoch")
        _train_on(run, flow, kwargs)
        if not run.state.by_epoch:
            run.call_hook("after_epoch")
    finally:
        run.state.in_loop = False


def _train_on(run: WholeRun, flow: Workflow, kwargs: dict[str, Any]) -> None:
    """The phases in turn."""
    state = run.state
    for mode, loader in flow.steps(state):
        state.cut_short = False
        if not state.by_epoch:  # here: `train` may be a user's own
            state.inner_iter = flow.repeat
        getattr(run, mode)(loader, **kwargs)
        if state.stop_reason is not None:
            flow.repeat += not state.cut_short
            return


def _open_epoch(run: WholeRun, loader: Any) -> Iterator[tuple[int, Any]]:
    """Call `before_train_epoch`, then give (inner_iter, batch) pairs.

    An epoch that a resumed run goes on with was begun before: what its beginning drew
    from the random streams is not drawn again.
    """
    start = run.state.done
    with _rng_kept(run, start > 0):
        loader.set_epoch(run.state.epoch)
        run.call_hook("before_train_epoch")
        if start:
            run.state.inner_iter = start - 1  # maybe no batch is left in this epoch
            loader.start_at(start)
        return enumerate(iter(loader), start)


def _rng_kept(run: WholeRun, kept: bool) -> contextlib.AbstractContextManager[None]:
    return run.session.keeping_random_state() if kept else contextlib.nullcontext()


def _explained(run: WholeRun, error: BaseException) -> BaseException | None:
    """The loader's explanation of `error`, if any; sets how far the run was."""
    explain = getattr(run.data_loader, "explain", None)
    known = explain(error) if explain is not None else None
    known = known or lost_peer(error)
    told = error if known is None else known
    if isinstance(told, (DivergedError, DeviceMemoryError, DataError, HangError)):
        told.progress = f"epoch {run.epoch + 1}, iteration {run.iter + 1}"
    return known


def _first_lines(runner: WholeRun, workflow: Iterable[Any], loaders: Any) -> list[str]:
    """The lines a run begins with: device, model, data and schedule.

    `loaders` are the prepared ones, one for each phase of `workflow`.
    """
    flow = [tuple(phase) for phase in workflow]
    trains = (one for one, (mode, _) in zip(loaders, flow) if mode != "val")
    size = next((one.samples_per_update for one in trains), None)
    kind = f"{runner.adapter.name}{' (emulated)' * runner.adapter.emulated}"
    read = [one.loader if one.dataset is None else one for one in loaders]
    phases = f"; workflow {flow}" if len(flow) > 1 else ""
    data = [f"{mode} {describe_loader(one)}" for one, (mode, _) in zip(read, flow)]
    ranks = "" if runner.world_size == 1 else f" x {runner.world_size} processes"
    return [
        f"run: {type(runner).__name__} on {kind}{ranks}, host {get_host_info()}, "
        f"work_dir: {runner.work_dir or 'none, nothing is written'}",
        f"model: {runner.model_name}, {parameters_of(runner.model)}",
        f"schedule: max_epochs {runner.max_epochs}, max_iters {runner.max_iters}, "
        f"samples an update: {size}{phases}; data: {', '.join(data)}",
    ]


def parameters_of(model: nn.Module) -> str:
    """`1,234 parameters (1,000 trainable)`, each counted once."""
    found = list(model.parameters())
    if any(is_lazy(param) for param in found):
        return "parameters that take their shape from the first batch"
    count = sum(param.numel() for param in found)
    trainable = sum(param.numel() for param in found if param.requires_grad)
    return f"{count:,} parameters ({trainable:,} trainable)"
