"""`self.trainer.strategy` of a LightningModule: for `self.all_gather`."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from devrun.dist import barrier, broadcast_object, gather_objects
from devrun.errors import UnsupportedFeatureError
from devrun.hooks.evaluation import EvalHook
from devrun.run import Run


class Strategy:
    """The part of Lightning's Strategy that a module calls."""

    def __init__(self, run: Run, hook: Any) -> None:
        self._run, self._hook = run, hook

    def all_gather(
        self, tensor: Tensor, group: Any = None, sync_grads: bool = False
    ) -> Tensor:
        """(world_size, *shape): that of each process; in a single one, as it is.

        Raises:
            UnsupportedFeatureError: of another shape in another process, or in a step
                that not all processes do equally often.
        """
        if self._run.world_size == 1:
            return tensor
        if self._hook.in_validation_step:
            self._check_shares()
        shapes = gather_objects((tuple(tensor.shape), str(tensor.dtype)))
        if len(set(shapes)) > 1:
            raise UnsupportedFeatureError(
                f"self.all_gather: the tensors of the processes differ, {shapes[0]} "
                f"and {next(s for s in shapes if s != shapes[0])}: pad them, or log "
                "values, whose mean is over all processes"
            )
        tensor = tensor.contiguous()
        if sync_grads:
            from torch.distributed.nn.functional import all_gather

            return torch.stack(list(all_gather(tensor, group or dist.group.WORLD)))
        parts = [torch.empty_like(tensor) for _ in shapes]
        dist.all_gather(parts, tensor.detach(), group=group)
        return torch.stack(parts)

    def _check_shares(self) -> None:
        """Refuse what would wait for a process that has fewer samples.

        An evaluation reads each sample once, so that shares may differ by one.
        """
        for hook in self._run.hooks:
            for loader in hook.loaders.values() if isinstance(hook, EvalHook) else ():
                size, world = len(loader.dataset), self._run.world_size
                if size % world:
                    raise UnsupportedFeatureError(
                        f"self.all_gather in the step of an evaluation: {size} samples "
                        f"cannot be shared equally by {world} processes, so that they "
                        "do not call it equally often: leave "
                        f"{size % world} out, or log values, whose mean is over all "
                        "processes"
                    )

    def barrier(self, name: str | None = None) -> None:
        """Wait until every process is here."""
        barrier()

    def broadcast(self, obj: Any, src: int = 0) -> Any:
        """What process `src` has, in every process."""
        return broadcast_object(obj, src)
