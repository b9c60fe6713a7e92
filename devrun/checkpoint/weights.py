"""Weights into a model and out of it: MMCV's functions, for every kind of file."""

from __future__ import annotations

import logging
import os
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn

from devrun.checkpoint.fitting import WRAPPED, load_state_dict, renamed
from devrun.checkpoint.loader import CheckpointLoader, moved, state_dict_of
from devrun.checkpoint.mmcv_format import write_mmcv_checkpoint
from devrun.config.revisions import MODULE, revised, revisions
from devrun.errors import (
    CheckpointError,
    ConfigError,
    ConfigTypeError,
    UnsupportedFeatureError,
)


def load_checkpoint(
    model: nn.Module,
    filename: str | os.PathLike[str],
    map_location: Any = None,
    strict: bool = False,
    logger: logging.Logger | None = None,
    revise_keys: Sequence[Sequence[str]] = MODULE,
    *,
    allow_pickle: bool = False,
) -> Any:
    """Load the weights in `filename` into `model`; all that was in the file, as it was.

    Args:
        filename: a checkpoint directory of devrun, a `.pth` of MMCV or of a bare
            state_dict, or a `.safetensors` file.
        map_location: as in `torch.load`; the CPU by default.
        strict: whether a missing, unexpected or mis-shaped key is an error.
        revise_keys: (regular expression, replacement) pairs applied to the keys.
        allow_pickle: run the code that an old `.pth` file names.

    Raises:
        ConfigError: `revise_keys` is not such pairs.
        CheckpointError: missing, damaged or refused; no key of it fits the model; or
            `strict` and not all do.
    """
    try:
        pairs = revisions(list(revise_keys))
    except ValueError as error:
        raise ConfigError(f"revise_keys: {error}") from None
    checkpoint = CheckpointLoader.load_checkpoint(
        filename, map_location, logger, allow_pickle=allow_pickle
    )
    state_dict = state_dict_of(checkpoint, filename)
    try:
        state_dict = renamed(state_dict, lambda key: revised(key, pairs))
    except ValueError as error:
        raise CheckpointError(f"{filename}: revise_keys: {error}") from None
    load_state_dict(model, state_dict, strict, logger, source=str(filename))
    return checkpoint


def weights_to_cpu(state_dict: Mapping[str, Any]) -> OrderedDict[str, Any]:
    """A state_dict like it with all tensors on the CPU, its versions kept."""
    return moved(state_dict, "cpu")


def get_state_dict(
    module: nn.Module,
    destination: Any = None,
    prefix: str = "",
    keep_vars: bool = False,
) -> Any:
    """`module.state_dict()` with the keys of the module inside, if it is wrapped."""
    wrappers = (nn.DataParallel, nn.parallel.DistributedDataParallel)
    if not isinstance(module, wrappers):
        if destination is None:
            return module.state_dict(prefix=prefix, keep_vars=keep_vars)
        return module.state_dict(
            destination=destination, prefix=prefix, keep_vars=keep_vars
        )
    state = module.state_dict(keep_vars=keep_vars)
    inner = renamed(state, lambda key: prefix + key.removeprefix(WRAPPED))
    if destination is None:
        return inner
    destination.update(inner)
    return destination


def save_checkpoint(
    model: nn.Module,
    filename: str | os.PathLike[str],
    optimizer: Any = None,
    meta: Mapping[str, Any] | None = None,
    file_client_args: Any = None,
) -> None:
    """Write a `.pth` in MMCV's layout: `meta`, `state_dict` and `optimizer`.

    Raises:
        ConfigTypeError: `meta` is not a dict.
        UnsupportedFeatureError: `file_client_args`, for remote storage.
        CheckpointError: a value in `meta` that could not be loaded again.
        StorageError: the disk refused; an older file of that name is intact.
    """
    if meta is not None and not isinstance(meta, Mapping):
        raise ConfigTypeError(f"meta must be a dict or None, got {type(meta).__name__}")
    if file_client_args is not None:
        raise UnsupportedFeatureError(
            "file_client_args: checkpoints are written to local paths only; save "
            "here and upload the file"
        )
    facts = dict(meta or {})
    classes = getattr(model, "CLASSES", None)
    if classes is not None:
        facts.setdefault("CLASSES", classes)
    state: Any = None
    if isinstance(optimizer, Mapping):
        state = {name: one.state_dict() for name, one in optimizer.items()}
    elif optimizer is not None:
        state = optimizer.state_dict()
    weights = weights_to_cpu(get_state_dict(model))
    write_mmcv_checkpoint(filename, weights, state, facts)
