"""What packages on MMCV 1.x would run or unpickle for a config, refused or made safe.

Their registries select only what is registered, so a name runs nothing else. Beyond
names there are these doors, each found by reading the code:

- MMCV's file handlers unpickle a `.pkl` and build any object of a `.yaml`;
- `CheckpointLoader` unpickles, and fetches from the network, for `init_cfg`,
  `pretrained` and the like;
- `FileClient` imports the client of a storage, from a folder that the config names;
- MMCls' CIFAR sets unpickle and download, its MNIST sets download;
- MMPose reads JSON with `json_tricks`, which imports what a file names, evaluates words
  of NVGesture's lists, and unpickles the cached poses of Panoptic; its SMPL models are
  pickles that smplx reads; MMDet's OpenImages unpickles a class hierarchy;
- `Config.fromfile` executes a `.py` (a teacher's config of MMDet);
- `Albu` takes any attribute of albumentations, `TIMMBackbone` passes arguments on.

The files get other code, which reads the same ones without running anything;
the rest is refused. `--trust-config` leaves the packages as they are.
"""

from __future__ import annotations

import ast
import functools
import json
import logging
import pickle
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import numpy as np

from devrun.construct import where
from devrun.errors import ConfigError, DataError
from devrun.interop.readers import (
    arrays_from,
    is_there,
    not_downloaded,
    put,
    put_readers,
    unless_trusted,
)
from devrun.trust import check_arguments, may_run_code

logger = logging.getLogger("devrun")

_building: ContextVar[bool] = ContextVar("building", default=False)
_BACKENDS = ("disk",)
_STORAGES = ("ceph", "http", "lmdb", "memcached", "petrel")
_REFUSED_TYPES = ("Albu",)


@contextmanager
def guarded() -> Iterator[None]:
    """Inside, their code acts for a config: files that are programs are not run."""
    token = _building.set(not may_run_code())
    try:
        yield
    finally:
        _building.reset(token)


def harden(name: str) -> None:
    """Put readers that run nothing into MMCV and the package `name`.

    A config that may run code gets the package's own, at each call.
    """
    _harden_mmcv()
    if name in _CHANGES:
        _CHANGES[name]()


def check_section(args: Mapping[str, Any], cfg: Mapping[str, Any]) -> None:
    """Refuse arguments, at any depth, that make their components run something.

    Raises:
        ConfigError: with the place of the key.
    """
    if may_run_code():
        return
    check_arguments(_component, args, lambda key: where(cfg, key))
    _check(cfg)


def _component() -> None:
    """Stands for any component of theirs."""


def _timm_backbone() -> None:
    """Stands for `TIMMBackbone`, whose arguments go to timm's `create_model`."""


_timm_backbone.__module__ = "timm.models"


def _check(node: Any) -> None:
    if isinstance(node, Mapping):
        if node.get("type") == "TIMMBackbone":
            given = {key: value for key, value in node.items() if key != "type"}
            check_arguments(_timm_backbone, given, lambda key: where(node, key))
        for key, value in node.items():
            reason = _refusal(str(key), value)
            if reason:
                raise ConfigError(
                    f"{key} is not given {value!r} by a config, {reason}; "
                    "--trust-config allows it for a config that you would run",
                    place=where(node, key),
                )
            _check(value)
    elif isinstance(node, (list, tuple)):
        for value in node:
            _check(value)


def _refusal(key: str, value: Any) -> str:
    """Why this value is not for a config; empty where nothing is wrong with it."""
    if key == "type" and value in _REFUSED_TYPES:
        return "as it calls whatever albumentations has by that name"
    if key == "backend" and value in _STORAGES:
        return "as that storage imports or fetches what the config says"
    if key == "smpl_path" and value is not None:
        return "as smplx unpickles that file"
    if key == "sys_path" and value is not None:
        return "as modules would be imported from there"
    if key in ("teacher_config", "config") and str(value).endswith(".py"):
        return "as that file would be executed"
    return ""


@functools.cache
def _harden_mmcv() -> None:
    mmcv: Any = sys.modules["mmcv"]
    handlers = import_module("mmcv.fileio.io").file_handlers
    put_readers(handlers, import_module("mmcv.runner").CheckpointLoader)
    client: Any = mmcv.FileClient
    client.__new__ = staticmethod(_local_client(client.__new__))
    config: Any = mmcv.Config
    config.fromfile = staticmethod(_not_executed(config.fromfile))


def _local_client(make: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(make)
    def local(cls: Any, backend: Any = None, prefix: Any = None, **options: Any) -> Any:
        far = prefix is not None or backend not in (None, *_BACKENDS)
        if far and not may_run_code():
            raise ConfigError(
                f"data is read from files that are here, not through "
                f"{backend or prefix!r}: download it first"
            )
        return make(cls, backend, prefix, **options)

    return local


def _not_executed(read: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(read)
    def fromfile(filename: Any, *args: Any, **kwargs: Any) -> Any:
        if _building.get():
            raise ConfigError(
                f"a config does not name another to be executed, {str(filename)!r}; "
                "--trust-config allows it"
            )
        return read(filename, *args, **kwargs)

    return fromfile


@functools.cache
def _harden_mmcls() -> None:
    cifar: Any = import_module("mmcls.datasets.cifar")
    arrays = functools.partial(arrays_from, None)
    cifar.pickle = SimpleNamespace(load=unless_trusted(arrays, pickle.load))
    put(cifar, check_integrity=is_there, download_and_extract_archive=not_downloaded)
    mnist = import_module("mmcls.datasets.mnist")
    put(mnist, download_and_extract_archive=not_downloaded)


@functools.cache
def _harden_mmdet() -> None:
    sets: Any = import_module("mmdet.datasets.openimages")
    sets.np = _without(sets.np, load=_array_file)


def _array_file(
    file: Any, *args: Any, allow_pickle: bool = False, **kwargs: Any
) -> Any:
    """As `numpy.load`; a pickled array of numbers and text is read without running."""
    try:
        return np.load(file, *args, **kwargs)
    except ValueError:
        with open(file, "rb") as pickled:
            return _header_and_arrays(pickled)


def _header_and_arrays(file: Any) -> Any:
    version = np.lib.format.read_magic(file)
    read = getattr(np.lib.format, f"read_array_header_{version[0]}_0", None)
    if read is None:
        raise DataError(f"{file.name} is not an array file that is known here")
    shape, _, _ = read(file)
    return np.asarray(arrays_from(None, file), dtype=object).reshape(shape)


@functools.cache
def _harden_mmpose() -> None:
    for name, module in list(sys.modules.items()):
        if not name.startswith("mmpose.datasets"):
            continue
        part: Any = module
        reader = getattr(module, "json", None)
        if getattr(reader, "__name__", "") == "json_tricks":
            part.json = _without(reader, load=json.load, loads=json.loads)
        if getattr(module, "pickle", None) is pickle:
            part.pickle = _without(pickle, load=functools.partial(arrays_from, None))
    gesture: Any = import_module("mmpose.datasets.datasets.gesture.nvgesture_dataset")
    gesture.eval = unless_trusted(ast.literal_eval, eval)


def _without(module: Any, **safe: Any) -> SimpleNamespace:
    """What a module has, with safe functions in the place of some."""
    made = SimpleNamespace(**vars(module))
    put(made, **safe)
    return made


_CHANGES: dict[str, Callable[[], None]] = {
    "mmcls": _harden_mmcls,
    "mmdet": _harden_mmdet,
    "mmpose": _harden_mmpose,
}
