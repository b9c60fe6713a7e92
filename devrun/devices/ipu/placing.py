"""The split and the recomputation of a model, put on it for one compilation."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from devrun.devices.ipu.autosplit import balance
from devrun.devices.ipu.batch import Flat, rebuild
from devrun.devices.ipu.optimizer import DeviceOptimizer
from devrun.devices.ipu.settings import IPUSettings
from devrun.devices.ipu.split import (
    apply_split,
    recompute,
    remove_recompute,
    remove_split,
)
from devrun.models.step_module import StepModule

__all__ = ["Placing"]

logger = logging.getLogger("devrun")


class Placing:
    """Checks the edges of both phases at once, and places those of the one at hand."""

    def __init__(self, sdk: Any, settings: IPUSettings, step: StepModule) -> None:
        self._sdk, self._settings, self._step = sdk, settings, step
        self._edges: Sequence[Mapping[str, Any]] = settings.train_split_edges
        if settings.train_ckpt_nodes:
            recompute(step.module, settings.train_ckpt_nodes, sdk)
        self.place(False)
        self.place(True)

    def place(self, training: bool) -> None:
        """Blocks of training, or those of evaluation where it has its own."""
        own = self._settings.eval_split_edges
        edges, where = self._edges, "train_split_edges"
        if own and not training:
            edges, where = own, "eval_split_edges"
        if edges:
            apply_split(
                self._step.module,
                edges=edges,
                sdk=self._sdk,
                num_ipus=self._settings.num_ipus,
                where=where,
            )

    def balance(self, flat: Flat, micro: int, optimizer: DeviceOptimizer) -> None:
        """Find the edges for `split: auto`, once, with the first micro-batch."""
        if self._settings.split != "auto" or self._edges:
            return
        batch = rebuild(flat.template, [tensor[:micro] for tensor in flat.tensors])
        found = balance(
            self._step,
            batch,
            self._settings.num_ipus or 1,
            optimizer_states=optimizer.num_states,
        )
        logger.info("%s", found.table)
        self._edges = found.edges

    def remove(self) -> None:
        """Take everything off the model."""
        remove_split(self._step.module)
        remove_recompute(self._step.module)
