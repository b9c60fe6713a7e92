"""What a runner is given: checked, and made into what it keeps."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from typing import Any

import torch

from devrun.config.numbers import is_limit, is_seed, whole_number
from devrun.config.origin import describe
from devrun.errors import ConfigError, ConfigTypeError
from devrun.files import user_path


def check_arguments(
    optimizer: Any, logger: Any, meta: Any, max_iters: Any, max_epochs: Any
) -> None:
    """Refuse constructor arguments of a runner that cannot be used."""
    optimizers = optimizer if isinstance(optimizer, dict) else {"optimizer": optimizer}
    for name, value in optimizers.items():
        if value is None and not isinstance(optimizer, dict):
            continue
        if not isinstance(value, torch.optim.Optimizer):
            raise ConfigTypeError(
                f"{name} must be a torch.optim.Optimizer, got {type(value).__name__}"
            )
    if logger is not None and not isinstance(logger, logging.Logger):
        raise ConfigTypeError(
            f"logger must be a logging.Logger or None, got {type(logger).__name__}"
        )
    if meta is not None and not isinstance(meta, dict):
        raise ConfigTypeError(f"meta must be a dict or None, got {type(meta).__name__}")
    if max_iters is not None and max_epochs is not None:
        raise ConfigError(
            "give max_epochs or max_iters, not both; where one is inherited, set it "
            "to null (None)",
            key="max_iters",
        )
    check_limit("max_epochs", max_epochs, 0)
    check_limit("max_iters", max_iters, 0)


def check_limit(name: str, limit: Any, least: int) -> None:
    """Refuse a `limit` that is not None or an int of at least `least`."""
    if limit is not None:
        whole_number(name, limit, least)


def check_fraction(name: str, limit: Any) -> None:
    """Refuse a limit of batches that is no number of them, and no part of them."""
    if limit is not None and not is_limit(limit):
        raise ConfigError(
            f"{name} must be an int of 1 or more, or a fraction of them such as 0.1, "
            f"got {limit!r}",
            key=name,
        )


def limited_to(limit: float, loader: Any) -> int:
    """How many items of `loader` a limit, which may be a fraction, leaves."""
    if isinstance(limit, int):
        return limit
    return max(1, int(limit * (length(loader, needed=True) or 0)))


def check_seed(seed: Any) -> None:
    """Refuse a seed, unless None, that some random stream does not accept."""
    if seed is not None and not is_seed(seed):
        raise ConfigError(
            f"seed must be an int from 0 to 2**63 - 1, got {describe(seed)}"
        )


def made_work_dir(work_dir: Any) -> str | None:
    """The absolute path of the folder, which is there now; None stays None."""
    if work_dir is None:
        return None
    if not isinstance(work_dir, (str, os.PathLike)):
        raise ConfigTypeError(
            f"work_dir must be a path or None, got {type(work_dir).__name__}"
        )
    path = user_path(work_dir).absolute()
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            f"work_dir {str(path)!r} cannot be made: {error.strerror}; choose another"
        ) from error
    return str(path)


def length(loader: Any, *, needed: bool) -> int | None:
    """`len(loader)`; None if it has no length and none is required by `needed`."""
    try:
        return len(loader)
    except TypeError as error:
        if not needed:
            return None
        raise ConfigError(
            f"the data loader over {describe_loader(loader)} has no length, so its "
            "epochs cannot be counted: give the data set a __len__, or use "
            "IterBasedRunner with max_iters"
        ) from error


def describe_loader(loader: Any) -> str:
    """The data set of `loader` and its size, for a message."""
    dataset = getattr(loader, "dataset", None)
    dataset = loader if dataset is None else dataset
    try:
        return f"{type(dataset).__name__} with {len(dataset)} samples"
    except Exception:  # noqa: BLE001 - what is described may be what is broken
        return type(dataset).__name__


def file_name(template: str, number: int) -> str:
    """Of a checkpoint in MMCV's layout, such as `epoch_{}.pth` asks for.

    Raises:
        ConfigError: the template is not that of a `.pth` file.
    """
    if not template.endswith(".pth"):
        raise ConfigError(
            f"filename_tmpl must end in .pth, got {template!r}; leave it out for a "
            "checkpoint directory"
        )
    return template.format(number)


def plain_meta(value: Any) -> Any:
    """Configs and ranges, which MMCV scripts put into `meta`, as dicts and lists."""
    if isinstance(value, Mapping):
        return {key: plain_meta(item) for key, item in value.items()}
    if isinstance(value, (list, range)):
        return [plain_meta(item) for item in value]
    return value
