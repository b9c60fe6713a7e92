"""`DistSamplerSeedHook`: sets the epoch of the samplers."""

from __future__ import annotations

from devrun.hooks.base import Hook
from devrun.registry import HOOKS
from devrun.run import Run


@HOOKS.register_module()
class DistSamplerSeedHook(Hook):
    """Calls `set_epoch` of the loader, its sampler and its batch sampler.

    Without it a sampler such as torch's DistributedSampler gives the same order in
    every epoch. The loaders that devrun prepares do this themselves; the hook is for
    samplers of one's own, and calling `set_epoch` twice changes nothing.
    """

    def before_epoch(self, runner: Run) -> None:
        loader = runner.data_loader  # None in an iteration runner that has not begun
        batch_sampler = getattr(loader, "batch_sampler", None)
        for owner in (
            loader,
            getattr(loader, "sampler", None),
            batch_sampler,
            getattr(batch_sampler, "sampler", None),
        ):
            if owner is not None and hasattr(owner, "set_epoch"):
                owner.set_epoch(runner.epoch)
