"""`IterBasedRunner`: a number of updates, however many epochs they make."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from devrun.errors import DataError
from devrun.registry import RUNNERS
from devrun.runners.base import BaseRunner

__all__ = ["IterBasedRunner", "IterLoader"]

_NOTHING = object()


class IterLoader:
    """A data loader that starts its next epoch by itself.

    `epoch` counts the epochs completed, `done` the batches taken from this one.
    """

    def __init__(self, dataloader: Any) -> None:
        self._dataloader = dataloader
        self._iterator: Iterator[Any] | None = None
        self.epoch = 0
        self.done = 0

    def __len__(self) -> int:
        return len(self._dataloader)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self._dataloader, name)

    def open(self) -> Iterator[Any]:
        """The iterator of the present epoch, which begins at `done`."""
        if self._iterator is not None:
            return self._iterator
        if hasattr(self._dataloader, "set_epoch"):
            self._dataloader.set_epoch(self.epoch)
        if self.done:
            self._dataloader.start_at(self.done)
        self._iterator = iter(self._dataloader)
        return self._iterator

    def __next__(self) -> Any:
        try:
            batch = next(self.open())
        except StopIteration:
            self.epoch, self.done, self._iterator = self.epoch + 1, 0, None
            batch = next(self.open(), _NOTHING)
            if batch is _NOTHING:
                raise DataError(
                    f"the data loader yielded nothing in epoch {self.epoch + 1}: one "
                    "that is read once cannot start again; give it a new iterator in "
                    "each __iter__"
                ) from None
        self.done += 1
        return batch

    def __iter__(self) -> Iterator[Any]:
        return self


@RUNNERS.register_module()
class IterBasedRunner(BaseRunner):
    """Runs phases of single iterations until `max_iters` updates are done::

    before_run; before_epoch
    while iter < max_iters:
        for mode, times in workflow:
            repeat times: before_{mode}_iter; step; after_{mode}_iter
    after_epoch; after_run
    """

    _by_epoch = False

    def train(self, data_loader: Any, **kwargs: Any) -> None:
        """One update with the next batch."""
        if self.mode != "train":
            self._step_model.train()
        self.mode, self.data_loader = "train", data_loader
        self._start_phase()
        self.data_batch = next(data_loader)
        self._epoch = data_loader.epoch
        for call in self._table.calls["before_train_iter"]:
            call(self)
        self.run_iter(self.data_batch, train_mode=True, **kwargs)
        self._updates += 1
        self._phase_over = True
        for call in self._table.calls["after_train_iter"]:
            call(self)
        del self.data_batch
        self._inner_iter += 1
        self._iter += 1
        self._phase_over = False

    @torch.no_grad()
    def val(self, data_loader: Any, **kwargs: Any) -> None:
        """One step without training on the next batch."""
        self.mode, self.data_loader = "val", data_loader
        self._start_phase()
        self.data_batch = next(data_loader)
        with self.evaluating():
            self.call_hook("before_val_iter")
            self.run_iter(self.data_batch, train_mode=False, **kwargs)
            self._phase_over = True
            self.call_hook("after_val_iter")
        del self.data_batch
        self._inner_iter += 1
        self._phase_over = False

    def run(
        self,
        data_loaders: Sequence[Any],
        workflow: Sequence[Any] = (("train", 1),),
        max_iters: int | None = None,
        **kwargs: Any,
    ) -> None:
        """Run `workflow`, one loader for each phase, until `max_iters`.

        Args:
            data_loaders: a list of torch DataLoaders; they start again by themselves.
            workflow: pairs of mode and number of iterations.
            max_iters: deprecated; give it to the constructor.

        Raises:
            ConfigError: loaders and workflow do not fit, or no limit was given.
        """
        if max_iters is not None:
            warnings.warn(
                "max_iters belongs to the constructor of the runner",
                DeprecationWarning,
                stacklevel=2,
            )
            self._max_iters = max_iters
        flow = self._prepare_run(data_loaders, workflow)
        # one for all phases of a loader: they go through its data together
        endless = {id(loader): IterLoader(loader) for loader in flow.loaders}
        flow.loaders = [endless[id(loader)] for loader in flow.loaders]
        limit = self._max_iters
        self._announce(flow)
        self._run_phases(flow, lambda: self._iter >= (limit or 0), **kwargs)

    def _before_phases(self) -> None:
        self.call_hook("before_epoch")

    def _after_phases(self) -> None:
        self.call_hook("after_epoch")

    def _start_phase(self) -> None:
        if self._workflow is not None:
            self._inner_iter = self._workflow.repeat
        if self._pending_rng is not None:
            self.data_loader.open()
            self._restore_rng()
