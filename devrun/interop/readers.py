"""Readers for packages of other frameworks that run, unpickle and fetch nothing.

They stand where MMCV 1.x and MMEngine have their own, for a config that is data.
"""

from __future__ import annotations

import functools
import os
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import yaml

from devrun.checkpoint import CheckpointLoader
from devrun.errors import CheckpointError, DataError
from devrun.trust import may_run_code

_ALLOWED = (("numpy", "ndarray"), ("numpy", "dtype"), ("_codecs", "encode"))
_ARRAY_MODULES = ("numpy.core.multiarray", "numpy._core.multiarray")


def unless_trusted(safe: Callable[..., Any], own: Callable[..., Any]) -> Any:
    """Calls `safe` for a config that is data, and the package's `own` for others."""

    @functools.wraps(own)
    def chosen(*args: Any, **kwargs: Any) -> Any:
        return (own if may_run_code() else safe)(*args, **kwargs)

    return chosen


def put(owner: Any, **safe: Callable[..., Any]) -> None:
    """In the place of functions of `owner`, by name, others `unless_trusted`."""
    for name, function in safe.items():
        setattr(owner, name, unless_trusted(function, getattr(owner, name)))


def put_readers(handlers: dict[str, Any], loader: Any, **safe: Any) -> None:
    """The same of the file handlers and the checkpoint loader of MMCV or MMEngine.

    Args:
        safe: other methods of the handlers, by name.
    """
    endings = {"yaml": yaml_from, "yml": yaml_from, "pkl": arrays_from}
    for ending, read in {**endings, "pickle": arrays_from}.items():
        kind = type(handlers[ending])
        own: Any = type(kind.__name__, (kind,), {})
        put(own, load_from_fileobj=read, **safe)
        handlers[ending] = own()
    for prefix, theirs in list(loader._schemes.items()):
        reader = not_fetched if prefix else checkpoint_from
        loader.register_scheme(prefix, unless_trusted(reader, theirs), force=True)


def yaml_from(self: Any, file: Any, **kwargs: Any) -> Any:
    """A file handler's method: plain values only."""
    return yaml.safe_load(file)


def arrays_from(self: Any, file: Any, **kwargs: Any) -> Any:
    """A file handler's method: of a pickle numbers, text and arrays, else an error."""
    try:
        return ArrayUnpickler(file, encoding="latin1").load()
    except pickle.UnpicklingError as error:
        raise DataError(
            f"{getattr(file, 'name', 'a pickled file')} is not only numbers, text and "
            f"arrays: {error}; --trust-config allows it for a config that you would run"
        ) from error


def is_there(path: str, md5: str | None = None) -> bool:
    """In place of a check of its sum: what is in the file runs nothing."""
    return os.path.isfile(path)


def checkpoint_from(filename: str, map_location: Any = None, logger: Any = None) -> Any:
    """By devrun's reader, which builds tensors and plain containers only."""
    return CheckpointLoader.load_checkpoint(
        os.path.expanduser(filename), map_location or "cpu"
    )


def not_fetched(filename: str, map_location: Any = None, **_: Any) -> Any:
    """In place of what downloads a checkpoint."""
    raise CheckpointError(
        f"{filename!r} is not fetched for a config: download it, and give that "
        "file in its place (init_cfg.checkpoint or pretrained; null for random weights)"
    )


def not_downloaded(
    url: str, download_root: str, *args: Any, filename: str | None = None, **_: Any
) -> None:
    """In place of what downloads and unpacks a data set."""
    raise DataError(
        f"{download_root} lacks files of the data set: unpack "
        f"{filename or url.rpartition('/')[2]} from {url} there"
    )


class ArrayUnpickler(pickle.Unpickler):
    """Builds dicts, lists, numbers, strings and numpy arrays, and nothing else."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in _ALLOWED:
            return super().find_class(module, name)
        if name == "_reconstruct" and module in _ARRAY_MODULES:
            return _reconstruct
        raise pickle.UnpicklingError(f"it asks for {module}.{name}")


def _reconstruct(kind: type, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    """What numpy's pickles call first, under a name that moved between versions."""
    array: np.ndarray = np.ndarray(shape, np.dtype(dtype))
    return array
