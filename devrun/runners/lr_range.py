"""`find_lr`: the learning-rate range test on a runner, which gets its weights back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from devrun.hooks.lr_range import LrCurve, LrRangeHook
from devrun.hooks.schedules.torch_scheduler import TorchSchedulerHook
from devrun.runners.runner import BaseRunner


def find_lr(
    runner: BaseRunner, loaders: Sequence[Any], hook: LrRangeHook | None = None
) -> LrCurve:
    """The curve of losses over rising learning rates, see `LrRangeHook`.

    Weights, optimizer and random streams are put back; the counters of the runner are
    not, so another one trains.

    Args:
        runner: counts iterations, at least as many as the hook has steps; without a
            schedule, which would write the rate too. Those that a model brings with
            its optimizer are taken out.
        loaders: of one train phase.
    """
    session = runner.session
    hook = LrRangeHook() if hook is None else hook
    runner.prepare()
    session.sync_to_host()
    weights = _copied(session.adapter.model_state(session.wrapped))
    optimizer = _copied(
        session.adapter.optimizer_state(session.wrapped, runner.optimizer)
    )
    streams = session.random_state()
    left = [True]

    def restore() -> None:
        if not left:
            return
        left.clear()
        session.adapter.load_model_state(session.wrapped, weights, "the range test")
        load: Callable[[], None] = session.adapter.load_optimizer_state(
            session.wrapped, runner.optimizer, optimizer
        )
        load()
        session.sync_to_device()

    hook.at_end = restore
    table = runner.table
    table.hooks = [h for h in table.hooks if not isinstance(h, TorchSchedulerHook)]
    runner.register_hook(hook)
    try:
        runner.run(list(loaders), [("train", 1)])
    finally:
        restore()
        session.set_random_state(streams)
    return hook.curve


def _copied(tree: Any) -> Any:
    if isinstance(tree, Tensor):
        return tree.detach().clone()
    if isinstance(tree, dict):
        return {key: _copied(value) for key, value in tree.items()}
    if isinstance(tree, (list, tuple)):
        return [_copied(value) for value in tree]
    return tree
