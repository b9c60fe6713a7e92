"""The split and the recomputation of a model, put on it for one compilation."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import nn

from devrun.devices.ipu.explain import files_of
from devrun.devices.ipu.settings import IPUSettings
from devrun.devices.ipu.split import (
    apply_split,
    recompute,
    remove_recompute,
    remove_split,
)
from devrun.errors import ConfigError
from devrun.models.step_module import StepModule


class Placing:
    """Checks the edges of both phases at once, and places those of the one at hand."""

    def __init__(self, sdk: Any, settings: IPUSettings, step: StepModule) -> None:
        self._sdk, self._settings, self._step = sdk, settings, step
        try:
            if settings.train_ckpt_nodes:
                recompute(step.module, settings.train_ckpt_nodes, sdk)
            self.place(False)
            self.place(True)
        except BaseException:
            self.remove()
            raise

    def place(self, training: bool) -> None:
        """Blocks of training, or those of evaluation where it has its own."""
        settings, model = self._settings, self._step.module
        own = not training and bool(settings.eval_split_edges)
        edges = settings.eval_split_edges if own else settings.train_split_edges
        options = settings.training if training else settings.inference
        default = None if training else "ShardedExecution"
        strategy = options.get("executionStrategy", default)
        where = "eval_split_edges" if own else "train_split_edges"
        if edges:
            try:
                apply_split(
                    model,
                    edges=edges,
                    sdk=self._sdk,
                    num_ipus=None if own else settings.num_ipus,
                    where=where,
                    strategy=strategy,
                    # evaluation may leave out a layer of training
                    complete=training or own,
                )
            except ConfigError as error:
                error.key = where
                raise
            return
        remove_split(model)
        if isinstance(strategy, Mapping) and not _begins_blocks(model):
            raise ConfigError(
                "ipu: executionStrategy has stages, but nothing begins their blocks: "
                f"add {where} with the user_id of each",
                key="executionStrategy",
            )

    def ipus(self, training: bool) -> int | None:
        """Of one replica; None where the model's own code may begin blocks."""
        settings = self._settings
        own = () if training else settings.eval_split_edges
        edges = own or settings.train_split_edges
        if edges:
            return 1 + max(int(edge["ipu_id"]) for edge in edges)
        return None if _begins_blocks(self._step.module) else 1

    def remove(self) -> None:
        """Take everything off the model."""
        remove_split(self._step.module)
        remove_recompute(self._step.module)


def _begins_blocks(model: nn.Module) -> bool:
    """Whether a layer has a hook of PopTorch's, or its class's file mentions it."""
    hooks = (h for each in model.modules() for h in each._forward_pre_hooks.values())
    if any(type(hook).__module__.startswith("poptorch") for hook in hooks):
        return True
    files = [path for path in map(Path, files_of(model)) if path.is_file()]
    return any("poptorch" in path.read_text(errors="replace") for path in files)
