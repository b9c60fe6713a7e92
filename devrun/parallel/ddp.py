"""`DDP`: whole weights on each process, gradients averaged while they are computed."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

from torch import nn
from torch.nn.parallel import DistributedDataParallel

from devrun.dist import allreduce_grads
from devrun.errors import UnsupportedFeatureError
from devrun.parallel.strategy import Strategy, refuse_combined, share_weights
from devrun.step import UpdatePolicy
from devrun.torch_features import name_of_plug_in

_SYNCED = ("cuda", "hpu", "xpu")
"""Devices of torch's SyncBatchNorm, beside that of `torch.utils.rename_privateuse1`."""
_ARGUMENTS = ("gradient_as_bucket_view", "broadcast_buffers", "bucket_cap_mb")


class DDP(Strategy):
    """torch's DistributedDataParallel."""

    _first = True
    _wrapped: Any = None

    def check(self, policy: UpdatePolicy, model: Any, optimizer: Any) -> None:
        if not self.options.sync_bn:
            return
        if self.device.type not in (*_SYNCED, name_of_plug_in()):
            raise UnsupportedFeatureError(
                "parallel: sync_bn needs GPUs: torch's SyncBatchNorm takes no tensors "
                f"on device {self.device.type!r}; leave it out",
                key="sync_bn",
            )
        auto = policy.micro_batch == "auto"
        refuse_combined("parallel: sync_bn", {"micro_batch: auto; give a number": auto})

    def apply(self, model: Any, optimizer: Any, *, by_hand: bool = False) -> Any:
        """`model` in DDP, if there is something to average.

        `by_hand`: a rank that runs out of memory must be able to tell the others
        before they exchange gradients, which DDP does amid a backward pass.
        """
        if self.options.sync_bn:  # the parameters stay those of the optimizer
            model = nn.SyncBatchNorm.convert_sync_batchnorm(model)
        if by_hand or not any(param.requires_grad for param in model.parameters()):
            share_weights(model)
            return model
        arguments = dict(self.defaults)
        for name in _ARGUMENTS:
            if (value := getattr(self.options, name)) is not None:
                arguments[name] = value
        if self.device is not None and self.device.index is not None:
            arguments["device_ids"] = [self.device.index]
        self._wrapped = wrapped = DistributedDataParallel(
            model,
            find_unused_parameters=self.options.find_unused_parameters,
            static_graph=self.options.static_graph,
            **arguments,
        )
        return wrapped

    def micro_batches(self, model: Any, parts: Sequence[Any]) -> Iterator[Any]:
        no_sync = getattr(model, "no_sync", contextlib.nullcontext)
        if self.options.static_graph and self._first:
            # the graph is learnt from a first update whose every backward exchanges
            no_sync = contextlib.nullcontext
            self._first = model is not self._wrapped
        with no_sync():
            yield from parts[:-1]
        yield parts[-1]

    def average(self, model: Any) -> None:
        if model is not self._wrapped:
            allreduce_grads(model.parameters())
