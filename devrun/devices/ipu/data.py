"""The user's loader as a `poptorch.DataLoader` of the combined batch.

One item is what one call consumes: micro-batch x device iterations x accumulation x
replicas, in the order in which the device cuts it. Order, resume and per-sample
randomness are those of every device: a `LoaderSpec` of the larger batch, which
PopTorch's loader reads as the engine of a `PreparedLoader`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

from torch.utils.data import BatchSampler, IterableDataset

from devrun.data.prepared import PreparedLoader
from devrun.data.seeded import SeededDataset
from devrun.data.spec import LoaderSpec
from devrun.devices.ipu.batch import whole
from devrun.errors import ConfigError

logger = logging.getLogger("devrun")


class GlobalBatch:
    """The samples of one call as a product of its factors."""

    def __init__(self, options: Any, micro_batch: int | None) -> None:
        shared = options.replication_factor // options.input_group_size
        self.factors = {
            "micro-batch": micro_batch,
            "device iterations": options.device_iterations,
            "accumulation": options.Training.gradient_accumulation,
            "replicas": shared,
        }
        self.parts = 1
        for name, factor in self.factors.items():
            self.parts *= 1 if name == "micro-batch" else int(factor or 1)

    @property
    def size(self) -> int | None:
        micro = self.factors["micro-batch"]
        return None if micro is None else micro * self.parts

    def __str__(self) -> str:
        shown = [
            f"{name} {factor}"
            for name, factor in self.factors.items()
            if factor is not None and (factor != 1 or name != "device iterations")
        ]
        total = "" if self.size is None else f" = {self.size} samples"
        return " x ".join(shown) + total


def prepared_loader(
    sdk: Any, options: Any, loader: Any, *, seed: int, training: bool
) -> PreparedLoader:
    """A loader of combined batches for `options`, over the data of `loader`.

    Raises:
        ConfigError: fewer samples than one combined batch, in training.
    """
    batch = GlobalBatch(options, getattr(loader, "batch_size", None))
    if training:
        logger.info("ipu: one iteration takes %s", batch)
    if isinstance(loader, sdk.DataLoader):  # the user's own; it combines by itself
        return PreparedLoader(loader)
    spec = LoaderSpec.of(loader, seed=seed, training=training)
    if not isinstance(spec, LoaderSpec):
        if batch.parts == 1 or not training:
            return PreparedLoader(loader)
        return PreparedLoader(
            loader, accumulate=batch.parts, drop_short=True, receive=whole
        )
    if training:
        _check_samples(spec.dataset, batch)
    mode = spec.mode or "sync"
    ahead = training and mode.startswith("async")
    engine = partial(_Ahead if ahead else _poptorch_loader, sdk, options)
    return PreparedLoader(_combined(spec, batch), engine=engine)


def _combined(spec: LoaderSpec, batch: GlobalBatch) -> LoaderSpec:
    """`spec` with the combined batch and everything else as it is."""
    drop = spec.training or spec.drop_last
    own = spec.batch_sampler
    if own is None:
        drop = drop and batch.size is not None
        return replace(spec, batch_size=batch.size, drop_last=drop)
    if type(own) is BatchSampler:
        larger = BatchSampler(own.sampler, own.batch_size * batch.parts, drop)
        return replace(spec, batch_sampler=larger)
    return replace(spec, joined=batch.parts) if spec.training else spec


def _poptorch_loader(
    sdk: Any,
    options: Any,
    *,
    dataset: Any,
    batch_sampler: Any = None,
    batch_size: int | None = None,
    pin_memory: bool = False,
    in_order: bool = True,
    **arguments: Any,
) -> Any:
    """A `poptorch.DataLoader` of what a torch one with these arguments yields."""
    if isinstance(dataset, IterableDataset):
        if batch_size is not None:
            batch_size //= GlobalBatch(options, None).parts
    elif batch_sampler is not None:
        dataset, arguments["sampler"] = _Batches(dataset), batch_sampler
    return sdk.DataLoader(
        options,
        dataset=dataset,
        batch_size=batch_size,
        auto_distributed_partitioning=False,
        **arguments,
    )


class _Ahead:
    """Batches that a process of PopTorch's fetches ahead.

    It is a new process in each epoch, so that it starts where it should.
    """

    def __init__(self, sdk: Any, options: Any, **arguments: Any) -> None:
        self._sdk = sdk
        self._loader = _poptorch_loader(sdk, options, **arguments)
        self.timeout = self._loader.timeout

    def __len__(self) -> int:
        return len(self._loader)

    def __iter__(self) -> Iterator[Any]:
        accessor = self._sdk.AsynchronousDataAccessor(
            _Plain(self._loader), load_indefinitely=False
        )
        try:
            yield from accessor
        finally:
            accessor.terminate()


class _Plain:
    """A loader as nothing but an iterable with a length."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader

    def __len__(self) -> int:
        return len(self._loader)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._loader)


class _Batches:
    """A data set whose items are the samples of a whole batch.

    PopTorch's loader would put a combined batch together from collated micro-batches,
    which may differ in shape and lose what is no tensor.
    """

    def __init__(self, samples: SeededDataset) -> None:
        self._samples = samples

    def __len__(self) -> int:
        return len(self._samples)

    def __getitem__(self, keys: list[Any]) -> Any:
        return self._samples.__getitems__(keys)


def _check_samples(dataset: Any, batch: GlobalBatch) -> None:
    if isinstance(dataset, IterableDataset) or batch.size is None:
        return
    count = len(dataset)
    if count < batch.size:
        raise ConfigError(
            f"the data set has {count} samples, fewer than one update needs: {batch}; "
            "take a smaller batch size, fewer replicas or less accumulation",
            key="samples_per_gpu",
        )
    if left := count % batch.size:
        logger.info(
            "ipu: %d of %d samples do not fill a whole update and are left out of each "
            "epoch (another order leaves out others)",
            left,
            count,
        )
