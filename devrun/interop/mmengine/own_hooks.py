"""Hooks of MMEngine and MMPretrain that do their work through devrun's runner."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from devrun.errors import ConfigError, UnsupportedFeatureError
from devrun.hooks.base import Hook, Priority
from devrun.interop.mmengine.hook import EngineHook, EngineView
from devrun.interop.mmengine.step import Stacked
from devrun.interop.openmmlab import hooks as openmmlab
from devrun.run import Run
from devrun.step import Capability

_RECIPE = ("action_epoch", "train_pipeline", "batch_augments", "loss")


class RuntimeInfoHook(Hook):
    """Writes how far the run is into MMEngine's `MessageHub`, where parts look it up.

    `CosineEMA` of BYOL and MoCo v3 reads `max_iters` there.
    """

    priority: Any = Priority.VERY_HIGH

    def before_run(self, runner: Run) -> None:
        self._write(runner, "max_epochs", "max_iters", "epoch", "iter")
        hub = _message_hub()
        hub.update_info("loop_stage", "train")
        meta = getattr(EngineView(runner, self).train_dataloader, "dataset", None)
        hub.update_info("dataset_meta", getattr(meta, "metainfo", None))
        if self._evaluating not in runner.eval_contexts:
            runner.eval_contexts.append(self._evaluating)

    def before_train_epoch(self, runner: Run) -> None:
        self._write(runner, "epoch")

    def before_train_iter(self, runner: Run) -> None:
        self._write(runner, "iter")

    def _write(self, runner: Run, *names: str) -> None:
        hub = _message_hub()
        for name in names:
            hub.update_info(name, getattr(runner, name))

    @contextmanager
    def _evaluating(self, runner: Run) -> Iterator[None]:
        hub = _message_hub()
        hub.update_info("loop_stage", "val")
        yield
        hub.update_info("loop_stage", "train")


def _message_hub() -> Any:
    return import_module("mmengine.logging").MessageHub.get_current_instance()


class PreciseBNHook(openmmlab.PreciseBNHook):
    """MMPretrain's: as MMClassification's, on batches that are not mixed up.

    The model prepares them as for an evaluation, and its layers are in training mode.
    """

    def _look(self, runner: Run, batch: Any, on_device: bool) -> None:
        model: Any = runner.model
        if isinstance(batch, Stacked):  # prepared, for a device that compiles
            model(inputs=batch.inputs)
        else:
            model(**model.data_preprocessor(batch, False))


class SwitchRecipeHook(EngineHook):
    """MMPretrain's: another pipeline, batch augmentation or loss from an epoch on.

    Args:
        schedule: a dict for each change: `action_epoch`, the first epoch (from 1) of
            it, and what changes: `train_pipeline`, `batch_augments`, `loss`.

    Raises:
        ConfigError: no such part, or a run that counts no epochs.
        UnsupportedFeatureError: another loss on a device that compiles its steps.
    """

    def __init__(self, schedule: Sequence[Mapping[str, Any]]) -> None:
        kind: Any = import_module("mmpretrain.engine.hooks").SwitchRecipeHook
        super().__init__(kind(schedule))
        unread = {key for recipe in schedule for key in recipe} - {*_RECIPE}
        if unread:
            logging.getLogger("devrun").warning(
                "SwitchRecipeHook does not read %s, and neither does MMPretrain's; it "
                "reads %s",
                ", ".join(sorted(unread)),
                ", ".join(_RECIPE),
            )
        self._losses = any("loss" in recipe for recipe in schedule)
        self._begin = vars(self).pop("before_run")

    def before_run(self, runner: Run) -> None:
        if runner.max_epochs is None:
            raise ConfigError(
                "SwitchRecipeHook counts epochs: give train_cfg max_epochs"
            )
        if self._losses and Capability.HOST_WEIGHTS not in runner.adapter.capabilities:
            raise UnsupportedFeatureError(
                f"SwitchRecipeHook changes the loss, which {runner.adapter.name} has "
                "compiled: train once for each loss, with --load-from"
            )
        self._begin(runner)
