"""`Trial`: the first updates of a run in several ways in turn, then in the fastest."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from time import perf_counter, process_time
from typing import Any

import torch

from devrun.checkpoint.state import same_layout
from devrun.devices.precision import autocast_for
from devrun.devices.turns import Turns, told
from devrun.devices.update import Update
from devrun.parallel.strategy import optimizers_in

logger = logging.getLogger("devrun")


def numeric_trial(
    adapter: Any, keys: Sequence[str], model: Any, optimizer: Any
) -> Trial | None:
    """One of bf16 (`precision`) and `channels_last`, or of both together.

    None where the update is not the adapter's: there is nothing to time.
    """
    update: Update = adapter.update
    if update.owner != "adapter" or update.closure:
        logger.info("performance: nothing is measured where others do the update")
        return None
    plain, low = update.autocast, autocast_for("bf16", adapter.device.type)

    def enter(way: str) -> None:
        bf16 = "bf16" in way
        update.autocast, adapter.precision = (low, "bf16") if bf16 else (plain, None)
        if "channels_last" in keys:
            last = "channels_last" in way
            layout = torch.channels_last if last else torch.contiguous_format
            model.to(memory_format=layout)
            for each in optimizers_in(optimizer):
                same_layout(each)

    ways = ["plain", *("bf16" if key == "precision" else key for key in keys)]
    if len(keys) > 1:
        ways.append(" + ".join(ways[1:]))
    return Trial(update, ways, enter)


class Trial:
    """Times the training's own updates; forward, backward and step, without the data.

    By processor time, which other programs disturb less: the host has to be the device.
    It waits until the size of micro-batches is found.

    Args:
        update: whose `zero` begins an update and whose `after_update` ends it.
        ways: their names; the first is kept unless another one is faster by 3 %.
        enter: goes over to a way.
    """

    def __init__(
        self, update: Update, ways: Sequence[str], enter: Callable[[str], None]
    ) -> None:
        self.chosen: str | None = None
        self.ways = list(ways)
        self._update, self._enter = update, enter
        self._turns = Turns(ways)
        self._began = 0.0
        self._zero = update.zero
        update.zero, update.after_update = self._begin, self._end

    def choose(self, way: str) -> None:
        """Keep `way` from now on, and measure no more."""
        if self.chosen is None:
            self._update.zero, self._update.after_update = self._zero, None
        self.chosen = way
        self._enter(way)

    def _begin(self, optimizer: Any) -> None:
        # an update that is left out is zeroed twice
        self._began = self._began or process_time()
        self._zero(optimizer)

    def _end(self) -> None:
        seconds, self._began = process_time() - self._began, 0.0
        splitter = self._update.splitter
        if splitter is not None and splitter.measures:
            return
        before = self._turns.way
        chosen = self._turns.add(seconds)
        if chosen is not None:
            self.choose(chosen)
            logger.info(
                "performance: %s is kept; an update took, of processor time, %s",
                chosen,
                told(self._turns.times),
            )
        elif self._turns.way != before:
            self._enter(self._turns.way)


class GraphTrial:
    """`graphs: auto`: some updates without graphs, some with, then the faster way.

    The updates are the training's own, and either way gives the same numbers.

    Args:
        graphed: has `on`, which is switched here, and `refused`.
        synchronize: waits for the device.
    """

    WARM, TIMED = 5, 5
    """Updates before the timed ones, in which graphs are captured."""

    def __init__(
        self, device: str, graphed: Any, synchronize: Callable[[], None]
    ) -> None:
        self.decided = False
        self._device, self._graphed = device, graphed
        self._synchronize = synchronize
        self._updates = 0
        self._began = 0.0
        self._seconds: list[float] = []
        graphed.on = False

    def attach(self, update: Update) -> None:
        """Follow the updates of `update`, after what follows them already."""
        self._update, self._already = update, update.after_update
        update.after_update, update.graph_trial = self._after_update, self

    def _after_update(self) -> None:
        if self._already is not None:
            self._already()
        if self._graphed.refused:
            self._decide(self._graphed.on)
            return
        self._updates += 1
        if self._updates == self.WARM:
            self._synchronize()
            self._began = perf_counter()
        elif self._updates == self.WARM + self.TIMED:
            self._synchronize()
            self._seconds.append((perf_counter() - self._began) / self.TIMED)
            self._updates = 0
            self._next()

    def state_dict(self) -> dict[str, Any]:
        """What was chosen, which a resumed run keeps."""
        return {"on": self._graphed.on} if self.decided else {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._decide(bool(state["on"]))

    def _decide(self, on: bool) -> None:
        """Keep that, and follow no more updates."""
        self.decided, self._graphed.on = True, on
        self._update.after_update = self._already

    def _next(self) -> None:
        if len(self._seconds) == 1:
            self._graphed.on = True
            return
        plain, graphed = self._seconds
        self._decide(graphed < plain)
        logger.info(
            "%s graphs: auto keeps %s (an update took %.1f ms without, %.1f ms with)",
            self._device,
            "graphs" if self._graphed.on else "no graphs",
            plain * 1e3,
            graphed * 1e3,
        )
