"""Data sets and loaders from the `data` section of a config, in MMCV 1.x words."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, Sampler

from devrun.config.named_sets import named_sets
from devrun.config.numbers import MOST_WORKERS
from devrun.config.origin import describe
from devrun.construct import call, where
from devrun.data.bucketing import bucketed
from devrun.data.collate import TransformedBatch, build_collate
from devrun.data.datasets.wrappers import ConcatDataset, built
from devrun.data.spec import check_samples
from devrun.errors import ConfigError, ConfigTypeError, DevrunError, nearest
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
_OPTIONS = ("drop_last", "pin_memory", *_OF_WORKERS)
"""Those of a DataLoader that a config may give."""
VAL_PHASE = "val_phase"
"""Key of the data set that the val phases of a workflow read; `val` without it."""
_SECTIONS = (*(f"{mode}_dataloader" for mode in MODES), VAL_PHASE)


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
    shuffle: bool = True,
    seed: int | None = None,
    collate_fn: Callable[[Any], Any] | Mapping[str, Any] | str | None = None,
    batch_transform: Any = None,
    sampler: Iterable[Any] | Mapping[str, Any] | None = None,
    sampler_cfg: Mapping[str, Any] | None = None,
    mode: str | None = None,
    buckets: Mapping[str, Any] | None = None,
    **options: Any,
) -> DataLoader[Any]:
    """A torch DataLoader, in mmcls' words; the device adapter shards and prepares it.

    Args:
        samples_per_gpu: samples of one batch of one process.
        workers_per_gpu: worker processes; 0 reads in the training process.
        seed: chooses the order, instead of the run's own seed.
        collate_fn: makes a batch of a list of samples; see `build_collate`. By
            default that of the data set, if it has a `collate_fn`, else torch's.
        batch_transform: of each batch, on the host; see `TransformedBatch`.
        sampler, sampler_cfg: whose order to use instead, as an object or a config with
            a dotted path: `{type: torch.utils.data.WeightedRandomSampler, ...}`.
        mode: MMCV's `sync` or `async`; workers fetch ahead in both.
        buckets: arguments of `devrun.data.bucketed`, which pads samples of different
            lengths to a few sizes.
        options: the DataLoader's own, such as `drop_last`; workers stay from one epoch
            to the next unless `persistent_workers` is False.

    Raises:
        ConfigError: an empty data set or a value out of range.
    """
    for name, value, least, most in (
        ("samples_per_gpu", samples_per_gpu, 1, 2**63 - 1),
        ("workers_per_gpu", workers_per_gpu, 0, MOST_WORKERS),
    ):
        if type(value) is not int or value < least:
            raise ConfigError.of(name, f"must be an int of at least {least}: {value!r}")
        if value > most:
            raise ConfigError.of(name, f"must be at most {most}: {describe(value)}")
    if mode not in (None, "sync", "async"):
        raise ConfigError.of("mode", f"of a loader must be sync or async, got {mode!r}")
    if not isinstance(dataset, IterableDataset):
        check_samples(dataset)
    collate_fn = collate_fn or getattr(dataset, "collate_fn", None)
    sampler = sampler if sampler_cfg is None else sampler_cfg
    made: DataLoader[Any] = DataLoader(
        dataset,
        batch_size=samples_per_gpu,
        collate_fn=build_collate(collate_fn),
        **_order(dataset, sampler, shuffle, seed),
        **_reading(options, workers_per_gpu),
    )
    if buckets is not None:
        made = call(bucketed, {"loader": made, **buckets}, buckets)
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
    parameters = [*inspect.signature(build_dataloader).parameters][1:-1]
    known = [*parameters, *_ALIASES, *_OPTIONS]
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
        common.update(batch_transform=None)
    options: dict[str, Any] = {}
    for keys in (common, own):
        options.update((_ALIASES.get(key, key), value) for key, value in keys.items())
    return options


def _reading(options: dict[str, Any], workers: int) -> dict[str, Any]:
    """`options` with the number of workers, and what torch takes only with some."""
    if workers:
        return {"persistent_workers": True, **options, "num_workers": workers}
    return {key: options[key] for key in options if key not in _OF_WORKERS}


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
    named = isinstance(cfg.get("type"), str)
    wanted = (
        inspect.signature(SAMPLERS.resolve(cfg["type"])).parameters if named else ()
    )
    defaults = {name: value for name, value in offered.items() if name in wanted}
    return SAMPLERS.build(dict(cfg), default_args=defaults)
