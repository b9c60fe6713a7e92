"""The user's loader as one of combined batches.

One item is what one call consumes: micro-batch x device iterations x accumulation x
replicas, in the order in which the device cuts it. Order, resume and per-sample
randomness are those of every device, with a larger batch.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

from torch.utils.data import BatchSampler, IterableDataset

from devrun.data.prepared import PreparedLoader
from devrun.data.spec import LoaderSpec
from devrun.devices.ipu.batch import whole
from devrun.devices.ipu.options import micro_batches
from devrun.errors import ConfigError

logger = logging.getLogger("devrun")


def prepared_loader(
    sdk: Any, options: Any, loader: Any, *, seed: int, training: bool
) -> PreparedLoader:
    """A loader of combined batches for `options`, over the data of `loader`.

    Raises:
        ConfigError: fewer samples than one combined batch, in training.
    """
    parts = micro_batches(options)
    product = _product(options, getattr(loader, "batch_size", None))
    if training:
        logger.info("ipu: one iteration takes %s", product)
    if isinstance(loader, sdk.DataLoader):  # the user's own; it combines by itself
        return PreparedLoader(loader)
    spec = LoaderSpec.of(loader, seed=seed, training=training)
    combined = _combined(spec, parts) if isinstance(spec, LoaderSpec) else None
    if combined is None:
        if parts == 1 or not training:
            return PreparedLoader(spec)
        return PreparedLoader(spec, accumulate=parts, drop_short=True, receive=whole)
    if training:
        _check_samples(combined, product)
    return PreparedLoader(combined)


def _product(options: Any, micro_batch: int | None) -> str:
    """The samples of one call, as a product of its factors."""
    factors = {
        "micro-batch": micro_batch,
        "device iterations": options.device_iterations,
        "accumulation": options.Training.gradient_accumulation,
        "replicas": options.replication_factor // options.input_group_size,
    }
    shown = [
        f"{name} {factor}"
        for name, factor in factors.items()
        if factor is not None and (factor != 1 or name != "device iterations")
    ]
    size = "" if micro_batch is None else micro_batch * micro_batches(options)
    return " x ".join(shown) + (f" = {size} samples" if size else "")


def _combined(spec: LoaderSpec, parts: int) -> LoaderSpec | None:
    """`spec` with `parts` batches in one and everything else as it is; None where
    somebody's own batch sampler makes the batches."""
    drop = spec.training or spec.drop_last
    own = spec.batch_sampler
    if own is None:
        size = None if spec.batch_size is None else spec.batch_size * parts
        return replace(spec, batch_size=size, drop_last=drop and size is not None)
    if type(own) is BatchSampler:
        larger = BatchSampler(own.sampler, own.batch_size * parts, drop)
        return replace(spec, batch_sampler=larger)
    return None


def _check_samples(spec: LoaderSpec, product: str) -> None:
    if isinstance(spec.dataset, IterableDataset) or spec.batch_size is None:
        return
    count = len(spec.dataset)
    if count < spec.batch_size:
        raise ConfigError(
            f"the data set has {count} samples, fewer than one update needs: "
            f"{product}; take a smaller batch size, fewer replicas or less "
            "accumulation",
            key="samples_per_gpu",
        )
    if left := count % spec.batch_size:
        logger.info(
            "ipu: %d of %d samples do not fill a whole update and are left out of each "
            "epoch (another order leaves out others)",
            left,
            count,
        )
