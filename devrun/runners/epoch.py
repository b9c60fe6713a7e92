"""`EpochBasedRunner`: whole passes over the data."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch

from devrun.registry import RUNNERS
from devrun.runners.base import BaseRunner

__all__ = ["EpochBasedRunner", "Runner"]


@RUNNERS.register_module()
class EpochBasedRunner(BaseRunner):
    """Runs phases of whole epochs until `max_epochs` train epochs are done::

    before_run
    while epoch < max_epochs:
        for mode, times in workflow:
            before_{mode}_epoch
            for batch in loader:
                before_{mode}_iter; step; after_{mode}_iter
            after_{mode}_epoch
    after_run
    """

    def train(self, data_loader: Any, **kwargs: Any) -> None:
        """One train epoch, from where a resumed run left it."""
        loader = self._prepared_loader(data_loader, training=True)
        self.mode, self.data_loader = "train", loader
        self._step_model.train()
        if self._max_epochs is not None:
            self._max_iters = self._max_epochs * len(loader)
        loader.set_epoch(self._epoch)
        batches = self._train_batches(loader)
        before = self._table.calls["before_train_iter"]
        after = self._table.calls["after_train_iter"]
        # an unpacking of nothing in each iteration would cost as much as a hook
        run_iter: Callable[..., None] = self.run_iter
        if kwargs:
            run_iter = partial(run_iter, **kwargs)
        for self._inner_iter, self.data_batch in batches:
            for call in before:
                call(self)
            run_iter(self.data_batch, train_mode=True)
            self._done += 1
            self._updates += 1
            for call in after:
                call(self)
            del self.data_batch
            self._iter += 1
            if self._stop_reason is not None:
                self._cut_short = True
                return
        self.call_hook("after_train_epoch")
        self._epoch += 1
        self._done = 0

    @torch.no_grad()
    def val(self, data_loader: Any, **kwargs: Any) -> None:
        """One pass over the data without training."""
        loader = self._prepared_loader(data_loader, training=False)
        self.mode, self.data_loader = "val", loader
        self._restore_rng()
        with self.evaluating():
            self.call_hook("before_val_epoch")
            for self._inner_iter, self.data_batch in enumerate(loader):
                self.call_hook("before_val_iter")
                self.run_iter(self.data_batch, train_mode=False, **kwargs)
                self.call_hook("after_val_iter")
                del self.data_batch
                if self._stop_reason is not None:
                    self._cut_short = True
                    return
            self.call_hook("after_val_epoch")

    def run(
        self,
        data_loaders: Sequence[Any],
        workflow: Sequence[Any] = (("train", 1),),
        max_epochs: int | None = None,
        **kwargs: Any,
    ) -> None:
        """Run `workflow`, one loader for each phase, until `max_epochs`.

        Args:
            data_loaders: a list of torch DataLoaders.
            workflow: pairs of mode and number of epochs, `[('train', 2), ('val', 1)]`.
            max_epochs: deprecated; give it to the constructor.

        Raises:
            ConfigError: loaders and workflow do not fit, or no limit was given.
        """
        if max_epochs is not None:
            warnings.warn(
                "max_epochs belongs to the constructor of the runner",
                DeprecationWarning,
                stacklevel=2,
            )
            self._max_epochs = max_epochs
        flow = self._prepare_run(data_loaders, workflow)
        limit = self._max_epochs
        for mode, loader in zip(flow.flow, flow.loaders, strict=True):
            if mode[0] == "train" and limit is not None:
                self._max_iters = limit * len(loader)
                break
        self._announce(flow)
        self._run_phases(flow, lambda: self._epoch >= (limit or 0), **kwargs)

    def call_hook(self, fn_name: str) -> None:
        """Call the stage `fn_name` of every hook that has it."""
        # Here, not in train(): a checkpoint of a subclass's loop is a whole epoch too.
        self._phase_over = fn_name in ("after_train_epoch", "after_val_epoch")
        super().call_hook(fn_name)
        self._phase_over = False

    def _train_batches(self, loader: Any) -> Iterator[tuple[int, Any]]:
        """Call `before_train_epoch`, then give (inner_iter, batch) pairs.

        After a resume the batches start where the run stood, and the random streams
        are put back at the point where an uninterrupted run had them.
        """
        if self._done == 0:
            self._restore_rng()
        self.call_hook("before_train_epoch")
        start = self._done
        if start:
            self._inner_iter = start - 1  # there may be no batch left in this epoch
            loader.start_at(start)
        iterator = iter(loader)
        self._restore_rng()
        return enumerate(iterator, start)


@RUNNERS.register_module()
class Runner(EpochBasedRunner):
    """Deprecated name of `EpochBasedRunner`."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        warnings.warn(
            "Runner is the deprecated name of EpochBasedRunner",
            DeprecationWarning,
            stacklevel=2,
        )
        super().__init__(*args, **kwargs)
