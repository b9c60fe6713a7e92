"""`EnergyHook`: the energy of a run, where the device counts it."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

from devrun.device_facts import FACTS, DeviceFacts
from devrun.hooks.base import Hook, Priority
from devrun.registry import HOOKS
from devrun.run import Run


@HOOKS.register_module()
class EnergyHook(Hook):
    """Logs `energy`: joules from one update to the next, of all ranks together.

    What an evaluation or a save took counts for the update after it. `devrun report`
    makes the cost of the run of it.
    """

    priority: Any = Priority.LOW

    def __init__(self) -> None:
        self._counter: Callable[[], float] | None = None
        self._last = 0.0

    def before_run(self, runner: Run) -> None:
        facts = FACTS.get(runner.adapter.name, DeviceFacts())
        module, _, function = facts.energy.partition(":")
        begin = getattr(import_module(module), function) if function else None
        self._counter, self._last = begin() if begin else None, 0.0
        if self._counter is None:
            runner.logger.warning(
                "%s shows no counter of energy here: none is logged; tell devrun "
                "report the power by --watts",
                runner.adapter.name,
            )

    def after_train_iter(self, runner: Run) -> None:
        if self._counter is not None:
            now = self._counter()
            runner.log_buffer.update({"energy": (now - self._last) * runner.world_size})
            self._last = now
