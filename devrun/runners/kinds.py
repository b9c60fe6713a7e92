"""`EpochBasedRunner` and `IterBasedRunner`: what a run counts."""

from __future__ import annotations

import warnings
from typing import Any

from devrun.registry import RUNNERS
from devrun.runners import loops
from devrun.runners.runner import BaseRunner


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

    A stop that was asked for comes after the iteration in progress.
    """

    def train(self, data_loader: Any, **kwargs: Any) -> None:
        """One train epoch, from where a resumed run left it."""
        loops.train_epoch(self, self.loader(data_loader, training=True), **kwargs)

    def val(self, data_loader: Any, **kwargs: Any) -> None:
        """One pass over the data without training."""
        loops.val_epoch(self, self.loader(data_loader, training=False), **kwargs)


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


@RUNNERS.register_module()
class IterBasedRunner(BaseRunner):
    """Runs phases of single iterations until `max_iters` updates are done::

        before_run; before_epoch
        while iter < max_iters:
            for mode, times in workflow:
                repeat times: before_{mode}_iter; step; after_{mode}_iter
        after_epoch; after_run

    A stop that was asked for comes after the iteration in progress.
    """

    _by_epoch = False

    def train(self, data_loader: Any, **kwargs: Any) -> None:
        """One update with the next batch."""
        loops.train_iter(self, data_loader, **kwargs)

    def val(self, data_loader: Any, **kwargs: Any) -> None:
        """One step without training on the next batch."""
        loops.val_iter(self, data_loader, **kwargs)
