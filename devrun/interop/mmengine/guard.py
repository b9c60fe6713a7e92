"""What packages on MMEngine would run, unpickle or fetch for a config, closed.

Each door was found by reading the code of mmengine 0.10, mmcv 2.1, mmpretrain 1.2 and
mmseg 1.2:

- a registry takes any dotted path as a `type`, and imports `NAME.registry` of a scope;
- file handlers unpickle a `.pkl` and build any object of a `.yaml`;
- the checkpoint loader and the file backends fetch, and import storage clients;
- `Config.fromfile` executes a `.py`;
- MMPretrain evaluates the text of a `dtype`, unpickles CIFAR's files and downloads;
- MMCV's `nms` evaluates the text of its `type`.

Where the same can be read without running anything it is read so, else it is refused.
`--trust-config` leaves the packages as they are.
"""

from __future__ import annotations

import functools
import io
import pickle
import re
import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import torch

from devrun.construct import where
from devrun.errors import ConfigError, DataError
from devrun.interop.openmmlab import guard
from devrun.interop.readers import (
    arrays_from,
    is_there,
    not_downloaded,
    put,
    put_readers,
    unless_trusted,
)
from devrun.scopes import SCOPES
from devrun.trust import may_run_code

_NAME = re.compile(r"[A-Za-z_][\w./-]*")
_REFUSED = ("Albu", "Albumentations", "RFSearchHook")


def check_section(args: Mapping[str, Any], cfg: Mapping[str, Any]) -> None:
    """Refuse names and arguments, at any depth, that make a component run something.

    Raises:
        ConfigError: with the place of the key.
    """
    if not may_run_code():
        guard.check_section(args, cfg)
        _check(cfg)


def _check(node: Any) -> None:
    if isinstance(node, Mapping):
        for key, value in node.items():
            if key in ("type", "dtype", "_scope_") and isinstance(value, str):
                _check_name(node, key, value)
            _check(value)
    elif isinstance(node, (list, tuple)):
        for value in node:
            _check(value)


def _check_name(node: Mapping[str, Any], key: str, value: str) -> None:
    first, dot, rest = value.partition(".")
    reason = ""
    if not _NAME.fullmatch(value):
        reason = "is no name, and would be run as code"
    elif value in _REFUSED or rest in _REFUSED:
        reason = "calls what the config says"
    elif key == "_scope_" and value not in SCOPES:
        reason = f"is none of the scopes {', '.join(SCOPES)}"
    elif key == "type" and dot and ("." in rest or first not in SCOPES):
        reason = "is a dotted path; parts are named, as Name or scope.Name"
    if reason:
        raise ConfigError(
            f"{key} {value!r} {reason}; --trust-config allows it for a config that "
            "you would run",
            place=where(node, key),
        )


def harden(name: str) -> None:
    """Put readers that run nothing into MMEngine and the package `name`.

    A config that may run code gets the package's own, at each call.
    """
    _harden_mmengine()
    if name in _CHANGES:
        _CHANGES[name]()


@functools.cache
def _harden_mmengine() -> None:
    registry: Any = import_module("mmengine.registry.registry")
    registry.get_object_from_string = _only_trusted(
        registry.get_object_from_string, "a dotted path is no type for a part"
    )
    registry.import_module = _registry_module
    put_readers(
        import_module("mmengine.fileio.handlers").file_handlers,
        import_module("mmengine.runner").CheckpointLoader,
        dump_to_fileobj=_no_dump,
        dump_to_str=_no_dump,
    )
    backends: Any = import_module("mmengine.fileio.backends")
    for table, kept in (
        (backends.backends, "local"),
        (backends.prefix_to_backends, ""),
    ):
        for name in set(table) - {kept}:
            table[name] = unless_trusted(_no_backend, table[name])
    config: Any = import_module("mmengine.config").Config
    config.fromfile = staticmethod(
        _only_trusted(config.fromfile, "a config names no other to be executed")
    )


def _only_trusted(function: Callable[..., Any], reason: str) -> Callable[..., Any]:
    def checked(first: Any, *args: Any, **kwargs: Any) -> Any:
        if not may_run_code():
            raise ConfigError(f"{first!r}: {reason}; --trust-config allows it")
        return function(first, *args, **kwargs)

    return checked


def _registry_module(name: str, package: str | None = None) -> Any:
    top = name.partition(".")[0]
    if top not in SCOPES and top not in sys.modules and not may_run_code():
        raise ImportError(f"{name} is not imported for a config")
    return import_module(name, package)


def _no_dump(*args: Any, **kwargs: Any) -> Any:
    raise DataError("configs write no files of this format")


def _no_backend(*args: Any, **kwargs: Any) -> Any:
    raise ConfigError("data is read from files that are here: download it first")


@functools.cache
def _harden_mmpretrain() -> None:
    cifar: Any = import_module("mmpretrain.datasets.cifar")
    cifar.pickle = SimpleNamespace(loads=unless_trusted(_array_bytes, pickle.loads))
    put(cifar, check_md5=is_there, download_and_extract_archive=not_downloaded)
    mnist = import_module("mmpretrain.datasets.mnist")
    put(mnist, download_and_extract_archive=not_downloaded)
    transforms = import_module("mmpretrain.datasets.transforms.processing")
    put(transforms, _str_to_torch_dtype=_dtype)


def _array_bytes(content: bytes, **_: Any) -> Any:
    return arrays_from(None, io.BytesIO(content))


def _dtype(name: str) -> torch.dtype:
    found = getattr(torch, name, None)
    if not isinstance(found, torch.dtype):
        raise ConfigError(f"{name!r} is no dtype of torch")
    return found


_CHANGES: dict[str, Callable[[], None]] = {"mmpretrain": _harden_mmpretrain}
