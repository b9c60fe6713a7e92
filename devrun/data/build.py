"""Data sets and loaders from the `data` section of a config, in MMCV 1.x words."""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, Sampler

from devrun.config.named_sets import named_sets
from devrun.config.numbers import MOST_WORKERS
from devrun.config.origin import describe
from devrun.construct import short, where
from devrun.data.bucketing import with_buckets
from devrun.data.caching import with_cache
from devrun.data.collate import TransformedBatch, build_collate
from devrun.data.datasets.wrappers import ConcatDataset, built
from devrun.data.spec import ERROR_POLICIES, ConfiguredLoader, Extras, check_samples
from devrun.errors import ConfigError, ConfigTypeError, DevrunError, nearest
from devrun.log.logger import get_logger
from devrun.place import Place
from devrun.registry import Registry

SAMPLERS = Registry("sampler", expects=lambda: Sampler)
MODES = ("train", "val", "test")
_ALIASES = {"batch_size": "samples_per_gpu", "num_workers": "workers_per_gpu"}
_OF_WORKERS = (
    "persistent_workers",
    "prefetch_factor",
    "timeout",
    "multiprocessing_context",
)
_OPTIONS = ("drop_last", "pin_memory", "worker_init_fn", *_OF_WORKERS)
"""Those of a DataLoader that a config may give."""
_SECTIONS = tuple(f"{mode}_dataloader" for mode in MODES)


def build_dataset(cfg: Any, default_args: Mapping[str, Any] | None = None) -> Any:
    """The data set that `cfg` describes; several, in a list, one after the other.

    A data set that is built already is returned as it is.
    """
    if isinstance(cfg, (list, tuple)):
        return ConcatDataset([build_dataset(part, default_args) for part in cfg])
    return built(cfg, default_args)


def build_dataloader(
    dataset: Any,
    samples_per_gpu: int = 1,
    workers_per_gpu: int = 0,
    *,
    num_gpus: int = 1,
    dist: bool = True,
    shuffle: bool = True,
    round_up: bool = True,
    seed: int | None = None,
    collate_fn: Callable[[Any], Any] | Mapping[str, Any] | str | None = None,
    batch_transform: Any = None,
    sampler: Iterable[Any] | Mapping[str, Any] | None = None,
    sampler_cfg: Mapping[str, Any] | None = None,
    on_sample_error: str | None = None,
    max_skipped: int | None = None,
    mode: str | None = None,
    cache: str | int | None = None,
    buckets: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None = None,
    group_by_length: bool = False,
    **options: Any,
) -> DataLoader[Any]:
    """A torch DataLoader, in mmcls' words; the device adapter shards and prepares it.

    Args:
        samples_per_gpu: samples of one batch of one process.
        workers_per_gpu: worker processes; 0 reads in the training process.
        num_gpus: as in MMCV, multiplies both where one process feeds several devices
            (`dist` False).
        round_up: must stay True: in training all processes get equally many batches.
        seed: chooses the order, instead of the run's own seed.
        collate_fn: makes a batch of a list of samples; see `build_collate`. By
            default that of the data set, if it has a `collate_fn`, else torch's.
        batch_transform: of each batch, on the host; see `TransformedBatch`.
        sampler, sampler_cfg: whose order to use instead, as an object or a config with
            a dotted path: `{type: torch.utils.data.WeightedRandomSampler, ...}`.
        on_sample_error: `stop`, or `skip` and report; by default the data set's.
        max_skipped: samples that may be skipped before the run stops.
        mode: `sync`, or `async` to fetch ahead where the device's SDK can (IPU).
        cache: bytes of decoded images to keep, as `2GiB`; see `caching.with_cache`.
        buckets: arguments of `devrun.data.bucketed`, which pads samples of different
            lengths to a few sizes; a list for several axes.
        group_by_length: make batches of samples of similar length, within `buckets`.
        options: the DataLoader's own, such as `drop_last`; workers stay from one epoch
            to the next unless `persistent_workers` is False.

    Raises:
        ConfigError: an empty data set or a value out of range.
    """
    _check(samples_per_gpu, workers_per_gpu, round_up, on_sample_error, mode)
    if not isinstance(dataset, IterableDataset):
        check_samples(dataset)
    collate_fn = collate_fn or getattr(dataset, "collate_fn", None)
    if cache is not None:
        dataset = with_cache(dataset, cache)
    copies = 1 if dist else num_gpus
    loader = ConfiguredLoader(
        dataset,
        extras=Extras(on_sample_error, max_skipped, mode, group_by_length),
        batch_size=samples_per_gpu * copies,
        collate_fn=build_collate(collate_fn),
        **_order(
            dataset, sampler if sampler_cfg is None else sampler_cfg, shuffle, seed
        ),
        **_reading(options, workers_per_gpu * copies),
    )
    made = with_buckets(loader, buckets)
    if batch_transform is not None:
        made.collate_fn = TransformedBatch(made.collate_fn, batch_transform)
    return made


def build_loaders(
    data: Mapping[str, Any], modes: Iterable[str] = ("train", "val"), **defaults: Any
) -> dict[str, Any]:
    """The loaders of `modes` (of train, val, test) from the `data` section.

    Loader options are `defaults`, overlaid by the keys of `data` itself, overlaid by
    its `train_dataloader`, `val_dataloader` or `test_dataloader`; validation and test
    loaders do not shuffle, drop or resample unless these say so. Several sets for
    validation or testing, `{name: data set, ...}`, give a dict of loaders.

    Raises:
        ConfigError: a mode without a data set, or an unknown key.
    """
    return {mode: _build_loader(data, mode, defaults) for mode in modes}


def _build_loader(
    data: Mapping[str, Any], mode: str, defaults: Mapping[str, Any]
) -> Any:
    if mode not in MODES:
        raise ConfigError(f"no data set is called {mode!r}; {nearest(mode, MODES)}")
    options = {**defaults, **loader_options(data, mode)}
    if data.get(mode) is None:
        raise ConfigError(f"no data set in data.{mode}", place=where(data))
    sets = named_sets(data[mode]) if mode != "train" else {"": data[mode]}
    loaders = {}
    for name, cfg in sets.items():
        dataset = build_dataset(cfg)
        try:
            loaders[name] = build_dataloader(dataset, **options)
        except DevrunError as error:
            found = _place(data, mode, error.key)
            error.locate(
                found or where(*((data[mode], name) if name else (data, mode)))
            )
            raise
    return loaders.get("", loaders)


def _place(data: Mapping[str, Any], mode: str, option: str | None) -> Place:
    """Where the loader's `option` was given; empty where it was not."""
    names = [option, *(alias for alias, own in _ALIASES.items() if own == option)]
    for section in (data.get(f"{mode}_dataloader") or {}, data):
        for name in names:
            if name in section:
                return where(section, name)
    return Place()


def loader_options(data: Mapping[str, Any], mode: str) -> dict[str, Any]:
    """The arguments of `build_dataloader` that `data` gives for `mode`.

    torch's `batch_size` and `num_workers` stand for MMCV's names of the two.
    """
    if not isinstance(data, Mapping):
        raise ConfigTypeError(f"data must be a dict, got {type(data).__name__}")
    common = {k: v for k, v in data.items() if k not in (*MODES, *_SECTIONS)}
    section = f"{mode}_dataloader"
    own = data.get(section) or {}
    known = _known_options()
    for owner, keys in ((data, common), (own, own)):
        for key in keys:
            if key not in known:
                raise ConfigError(
                    f"unknown key {key!r} of a data loader; "
                    f"{nearest(key, (*known, *MODES, *_SECTIONS))}",
                    place=where(owner, key),
                )
    if mode != "train":
        common.update(shuffle=False, sampler=None, sampler_cfg=None, drop_last=False)
        common.pop("cache", None)  # the memory named is that of the training set
        common.update(group_by_length=False, batch_transform=None)
    options: dict[str, Any] = {}
    for keys in (common, own):
        options.update((_ALIASES.get(key, key), value) for key, value in keys.items())
    return options


def _known_options() -> list[str]:
    parameters = [*inspect.signature(build_dataloader).parameters][1:-1]
    return [*parameters, *_ALIASES, *_OPTIONS]


def _check(
    samples_per_gpu: Any,
    workers_per_gpu: Any,
    round_up: bool,
    policy: str | None,
    mode: str | None,
) -> None:
    for name, value, least, most in (
        ("samples_per_gpu", samples_per_gpu, 1, 2**63 - 1),
        ("workers_per_gpu", workers_per_gpu, 0, MOST_WORKERS),
    ):
        if type(value) is not int or value < least:
            raise ConfigError.of(name, f"must be an int of at least {least}: {value!r}")
        if value > most:
            raise ConfigError.of(name, f"must be at most {most}: {describe(value)}")
    if not round_up:
        raise ConfigError(
            "round_up: false is not possible: processes train in step", key="round_up"
        )
    if mode not in (None, "sync", "async"):
        raise ConfigError.of("mode", f"of a loader must be sync or async, got {mode!r}")
    if policy is not None and policy not in ERROR_POLICIES:
        raise ConfigError.of(
            "on_sample_error",
            f"must be one of {', '.join(ERROR_POLICIES)}: {policy!r}",
        )


def _reading(options: dict[str, Any], workers: int) -> dict[str, Any]:
    """`options` with the number of workers, and what torch takes only with some."""
    function = options.get("worker_init_fn")
    if function is not None and not callable(function):
        raise ConfigTypeError.of(
            "worker_init_fn",
            f"takes a function, which a file cannot hold, not {short(function)}; "
            "what workers need belongs into the data set",
        )
    if workers:
        _warn_of_cores(workers)
        return {"persistent_workers": True, **options, "num_workers": workers}
    return {key: options[key] for key in options if key not in _OF_WORKERS}


@functools.cache  # once, not for each loader
def _warn_of_cores(workers: int) -> None:
    cores = len(os.sched_getaffinity(0))
    if workers > cores:
        get_logger().warning(
            f"workers_per_gpu {workers} on {cores} of the machine's cores: "
            "more workers than cores read no faster"
        )


def _order(
    dataset: Any, sampler: Any, shuffle: bool, seed: int | None
) -> dict[str, Any]:
    """What tells a DataLoader in which order to read."""
    if isinstance(sampler, Mapping):
        sampler = _build_sampler(sampler, dataset, seed)
    if sampler is not None:
        return {"sampler": sampler}
    if not shuffle or isinstance(dataset, IterableDataset):
        return {}
    if seed is None:
        return {"shuffle": True}
    return {"shuffle": True, "generator": torch.Generator().manual_seed(seed)}


def _build_sampler(cfg: Mapping[str, Any], dataset: Dataset[Any], seed: Any) -> Any:
    """The sampler of `cfg`, told of what its constructor wants to know."""
    from devrun.dist import get_dist_info

    rank, world_size = get_dist_info()
    offered = {
        "dataset": dataset,
        "data_source": dataset,
        "num_replicas": world_size,
        "rank": rank,
        "shuffle": True,
    }
    if seed is not None:
        offered["seed"] = seed
    target = SAMPLERS.resolve(cfg["type"]) if isinstance(cfg.get("type"), str) else None
    wanted = inspect.signature(target).parameters if target is not None else ()
    defaults = {name: value for name, value in offered.items() if name in wanted}
    return SAMPLERS.build(dict(cfg), default_args=defaults)
