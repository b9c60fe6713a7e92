"""Weights into a model and out of it: MMCV's functions, for every kind of file."""

from __future__ import annotations

import logging
import os
import re
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Callable

import safetensors.torch
from torch import Tensor, nn

from devrun.checkpoint import tensorfile
from devrun.checkpoint.catalog import checkpoint_at
from devrun.checkpoint.download import fetched
from devrun.checkpoint.fitting import like, load_state_dict, renamed
from devrun.checkpoint.mmcv_format import write_mmcv_checkpoint
from devrun.checkpoint.pickled import load_pickled
from devrun.checkpoint.reader import (
    MissingCheckpointError,
    missing_message,
    read_checkpoint,
)
from devrun.config.revisions import MODULE, revised, revisions
from devrun.errors import (
    CheckpointError,
    ConfigError,
    ConfigTypeError,
    UnsupportedFeatureError,
    nearest,
)
from devrun.files import user_path
from devrun.python38 import unprefixed

Loader = Callable[..., Any]
_REMOTE = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://|(?:s3|pavi|petrel|modelzoo|mmcls):")
_LOGGER = logging.getLogger("devrun.checkpoint")


class CheckpointLoader:
    """Readers by the prefix of the path; local files when none is registered for it.

    Of remote paths `http(s)://` is downloaded where that is allowed, and others are
    refused: download the file first, or register a reader.
    """

    _schemes: dict[str, Loader] = {}

    @classmethod
    def register_scheme(
        cls,
        prefixes: str | Iterable[str],
        loader: Loader | None = None,
        force: bool = False,
    ) -> Any:
        """Read paths that begin with one of `prefixes` through `loader`.

        It is called with the path and `map_location`. Without it, a decorator.

        Raises:
            ConfigTypeError: a prefix is not a string.
            ConfigError: a prefix is taken and not `force`.
        """
        names = [prefixes] if isinstance(prefixes, str) else list(prefixes)

        def register(function: Loader) -> Loader:
            for name in names:
                if not isinstance(name, str):
                    raise ConfigTypeError(f"a prefix must be a string, got {name!r}")
                if name in cls._schemes and not force:
                    raise ConfigError(
                        f"{name!r} has a reader already; pass force=True to replace it"
                    )
                cls._schemes[name] = function
            return function

        return register if loader is None else register(loader)

    @classmethod
    def load_checkpoint(
        cls,
        filename: str | os.PathLike[str],
        map_location: Any = None,
        logger: logging.Logger | None = None,
        *,
        allow_pickle: bool = False,
    ) -> Any:
        """What is in `filename`; a dict with `state_dict` and `meta` if it has them.

        `allow_pickle` runs the code that a `.pth` file names.

        Raises:
            CheckpointError: missing, damaged, refused, or a remote path that may not
                or cannot be downloaded.
        """
        path = os.fspath(filename)
        (logger or _LOGGER).debug("reading checkpoint %s", path)
        matching = [prefix for prefix in cls._schemes if path.startswith(prefix)]
        if matching:
            return cls._schemes[max(matching, key=len)](path, map_location)
        if path.lower().startswith(("http://", "https://")):
            path = str(fetched(path))
        elif _REMOTE.match(path):
            raise CheckpointError(
                f"{path!r} is not a local path; download it first and give the "
                "path of the file"
            )
        return _load_local(user_path(path), map_location, allow_pickle)


def load_any(
    filename: str | os.PathLike[str],
    map_location: Any = None,
    logger: logging.Logger | None = None,
) -> Any:
    """`CheckpointLoader.load_checkpoint`, under the name MMCV's users import."""
    return CheckpointLoader.load_checkpoint(filename, map_location, logger)


def load_with_prefix(
    prefix: str, filename: str | os.PathLike[str], map_location: Any = None
) -> dict[str, Any]:
    """The state_dict of one submodule: keys under `prefix.`, without it.

    Raises:
        CheckpointError: no key begins with `prefix`.
    """
    state_dict = state_dict_of(load_any(filename, map_location), filename)
    prefix = prefix if prefix.endswith(".") else f"{prefix}."
    found = {
        unprefixed(key, prefix): value
        for key, value in state_dict.items()
        if key.startswith(prefix)
    }
    if not found:
        firsts = {key.split(".", 1)[0] for key in state_dict}
        hint = nearest(prefix[:-1], firsts)
        raise CheckpointError(f"no key in {filename!r} begins with {prefix!r}; {hint}")
    return found


def state_dict_of(
    checkpoint: Any, filename: str | os.PathLike[str]
) -> Mapping[str, Any]:
    """The weights in what was read: under `state_dict` or `model`, or all of it.

    Raises:
        CheckpointError: there are no tensors where weights are looked for.
    """
    found = checkpoint
    if isinstance(checkpoint, Mapping):
        for key in ("state_dict", "model"):
            if isinstance(checkpoint.get(key), Mapping):
                found = checkpoint[key]
                break
    if (
        not isinstance(found, Mapping)
        or not all(isinstance(key, str) for key in found)
        or not any(isinstance(value, Tensor) for value in found.values())
    ):
        raise CheckpointError(
            f"no weights in {str(filename)!r}: a state_dict was expected, alone or "
            "under 'state_dict' or 'model'"
        )
    if not isinstance(getattr(found, "_metadata", {}), Mapping):
        return dict(found)  # no versions of modules, as torch writes them
    return found


def _load_local(path: Path, map_location: Any, allow_pickle: bool) -> Any:
    path = checkpoint_at(path)
    if path.is_dir():
        found = read_checkpoint(path, parts=["model"])
        meta = {**found.manifest.meta, "step": found.step}
        return {"state_dict": found["model"], "meta": meta}
    if not path.exists():
        raise MissingCheckpointError(missing_message(path))
    if path.suffix == ".safetensors":
        return _from_safetensors(path)
    return load_pickled(path, map_location, allow_pickle=allow_pickle)


def _from_safetensors(path: Path) -> Any:
    if not path.is_file():
        raise CheckpointError(f"{str(path)!r} is not a regular file")
    try:
        return tensorfile.read(path, safetensors.torch.load_file)
    except OSError as error:
        reason = error.strerror or str(error)
        raise CheckpointError(f"{str(path)!r} cannot be read: {reason}") from error
    except ValueError as error:
        raise CheckpointError(f"{str(path)!r} is damaged: {error}") from error


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
        map_location: of a `.pth`, as in `torch.load`; the CPU by default.
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
    moved = {
        key: value.cpu() if isinstance(value, Tensor) else value
        for key, value in state_dict.items()
    }
    return like(state_dict, moved)  # type: ignore[no-any-return]


def get_state_dict(
    module: nn.Module,
    destination: Any = None,
    prefix: str = "",
    keep_vars: bool = False,
) -> Any:
    """`module.state_dict()` with the keys of the module inside, if it is wrapped."""
    wrappers = (nn.DataParallel, nn.parallel.DistributedDataParallel)
    if isinstance(module, wrappers):
        module = module.module
    given = {} if destination is None else {"destination": destination}
    return module.state_dict(prefix=prefix, keep_vars=keep_vars, **given)


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
