"""Data sets made of data sets."""

from __future__ import annotations

import json
import pickle
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils.data import ConcatDataset as TorchConcat
from torch.utils.data import Dataset

from devrun.config.numbers import whole_number
from devrun.data import rng
from devrun.data.transforms import with_pipeline
from devrun.errors import ConfigError, ConfigTypeError, DataError
from devrun.registry import DATASETS

_OF_DATA = (
    OSError,
    EOFError,
    UnicodeError,
    json.JSONDecodeError,
    zipfile.BadZipFile,
    pickle.UnpicklingError,
)


@contextmanager
def data_errors() -> Iterator[None]:
    """A constructor that fails at what it reads, of whichever package, is about data.

    torchvision and others raise RuntimeError where files are missing or damaged.
    """
    try:
        yield
    except ConfigError as error:
        cause = error.__cause__
        if not isinstance(cause, _OF_DATA) and type(cause) is not RuntimeError:
            raise
        told = DataError(*error.args)
        vars(told).update(vars(error))
        raise told from cause


def built(dataset: Any, default_args: Mapping[str, Any] | None = None) -> Any:
    """`dataset`, or what its config builds.

    Raises:
        ConfigError: no such data set, or wrong arguments.
        DataError: what it reads is missing or damaged.
    """
    if isinstance(dataset, dict):
        with data_errors():
            return DATASETS.build(with_pipeline(dataset), default_args=default_args)
    if not hasattr(dataset, "__getitem__") and not hasattr(dataset, "__iter__"):
        raise ConfigTypeError(
            f"a data set is a dict with a type, or an object, got {dataset!r}",
            key="dataset",
        )
    return dataset


class _Around(Dataset[Any]):
    """What it lacks is that of the `dataset` inside."""

    dataset: Any

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or "dataset" not in vars(self):
            raise AttributeError(name)
        return getattr(self.dataset, name)


@DATASETS.register_module()
class RepeatDataset(_Around):
    """`dataset` `times` over: fewer, longer epochs. What it lacks is the inner's."""

    def __init__(self, dataset: Any, times: int) -> None:
        if times < 1:
            raise ConfigError.of("times", f"must be at least 1, got {times}")
        self.dataset, self.times = built(dataset), times

    def __len__(self) -> int:
        return self.times * len(self.dataset)

    def __getitem__(self, index: int) -> Any:
        return self.dataset[index % len(self.dataset)]

    @property
    def targets(self) -> torch.Tensor:
        return torch.as_tensor(self.dataset.targets).repeat(self.times)

    @property
    def lengths(self) -> torch.Tensor:
        return torch.as_tensor(self.dataset.lengths).repeat(self.times)


@DATASETS.register_module()
class ReloadedDataset(_Around):
    """`dataset`, a config, built again every `interval` epochs, as long as before.

    What its constructor draws depends on (seed, epoch) alone, as a resume needs it.
    """

    def __init__(self, dataset: Any, interval: int = 1, seed: int = 0) -> None:
        if not isinstance(dataset, dict):
            raise ConfigTypeError.of("dataset", f"must be a config, got {dataset!r}")
        self.config, self.seed = dataset, seed
        self.interval = whole_number("interval", interval)
        self._epoch = -1
        self.set_epoch(0)

    def set_epoch(self, epoch: int) -> None:
        epoch -= epoch % self.interval
        if epoch == self._epoch:
            return
        with rng.preserved():
            rng.reseed(rng.mix(self.seed, epoch, 0))
            made = built(self.config)
        before = len(self.dataset if self._epoch >= 0 else made)
        if len(made) != before:
            raise DataError(
                f"built again for epoch {epoch + 1}, {type(made).__name__} has "
                f"{len(made)} samples instead of {before}; give it a fixed length"
            )
        self.dataset, self._epoch = made, epoch

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> Any:
        return self.dataset[index]


@DATASETS.register_module()
class ConcatDataset(TorchConcat[Any]):
    """`datasets` one after the other; what it lacks is the first one's."""

    def __init__(self, datasets: Sequence[Any]) -> None:
        if not isinstance(datasets, (list, tuple)) or not datasets:
            raise ConfigTypeError.of(
                "datasets", f"must be a non-empty list: {datasets!r}"
            )
        super().__init__(built(dataset) for dataset in datasets)

    @property
    def targets(self) -> torch.Tensor:
        return self._joined("targets")

    @property
    def lengths(self) -> torch.Tensor:
        return self._joined("lengths")

    def _joined(self, name: str) -> torch.Tensor:
        parts = [torch.as_tensor(getattr(part, name)) for part in self.datasets]
        return torch.cat(parts)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or "datasets" not in vars(self):
            raise AttributeError(name)
        return getattr(self.datasets[0], name)
