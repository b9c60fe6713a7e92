"""`.pth` files: read without running anything in them, written whole or not at all.

A pickle can name any function to call. `torch.load(weights_only=True)` builds tensors
and plain containers only. The one way past it is `allow_pickle`, for a file that its
user trusts and names; a refusal never leads to it automatically.
"""

from __future__ import annotations

import io
import logging
import os
import pickle
import re
import warnings
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any, cast

import numpy
import torch
from torch import Tensor

from devrun.checkpoint import fileops, tensorfile
from devrun.checkpoint.reader import MissingCheckpointError, missing_message
from devrun.checkpoint.storage import make_durable, write_file
from devrun.errors import CheckpointError
from devrun.files import disk_errors, user_path

_LOGGER = logging.getLogger("devrun.checkpoint")
_PLAIN: tuple[Any, ...] = (type(None), bool, int, float, str, bytes)
_ZIP = b"PK\x03\x04"
_BEGINNINGS = (
    _ZIP,
    *(pickle.dumps(torch.serialization.MAGIC_NUMBER, version) for version in range(6)),
)
"""Of every file that torch.save has written since 2018, the second kind until 1.5. The
tar files before that were read by code that weights_only did not reach
(CVE-2025-32434)."""
_CONTENTS = 1 << 25
"""Bytes of one piece, such as the table of contents of 300,000 tensors."""
_NAMED = re.compile(r"(?:GLOBAL|global|class|function) ([\w.]+)")


def load_pickled(
    path: str | os.PathLike[str],
    map_location: Any = None,
    *,
    allow_pickle: bool = False,
) -> Any:
    """What is in a `.pth` file of tensors and plain containers; on the CPU by default.

    `allow_pickle` runs whatever code the file names.

    Raises:
        CheckpointError: damaged, or it holds something that would need code to run.
    """
    path = Path(path)
    if not path.exists():
        raise MissingCheckpointError(missing_message(path))
    if not path.is_file():
        raise CheckpointError(f"{str(path)!r} is not a regular file")
    archive = _check_form(path)
    if allow_pickle:
        _LOGGER.warning("%s is unpickled, which runs the code that it names", path)
    place = "cpu" if map_location is None else map_location
    try:
        with warnings.catch_warnings(), _Sparing(path) as file:
            warnings.simplefilter("ignore")  # of torch about its own storage classes
            source: Any = path if archive or allow_pickle else file
            return torch.load(source, place, weights_only=not allow_pickle)
    except pickle.UnpicklingError as error:
        found = _NAMED.search(str(error))
        what = f"it names {found[1]!r}" if found else "it is no plain state"
        raise CheckpointError(
            f"{str(path)!r} is refused: {what}, and only tensors and plain containers "
            "are loaded, because anything else could run code; if you trust it, name "
            "it with --allow-pickle (allow_pickle=True)"
        ) from error
    except OSError as error:
        reason = error.strerror or str(error)
        raise CheckpointError(f"{str(path)!r} cannot be read: {reason}") from error
    except Exception as error:
        reason = str(error).strip().split("\n", 1)[0] or type(error).__name__
        raise CheckpointError(
            f"{str(path)!r} is damaged or not a torch file: {reason:.200}"
        ) from error


def save_pickled(content: Any, path: str | os.PathLike[str]) -> None:
    """`torch.save` so that the file is whole or not there; see `plain`.

    Raises:
        StorageError: the disk refused; a file that was there before is intact.
    """
    _save(path, lambda fd: torch.save(content, cast("IO[bytes]", _Sink(fd))))


def write_safetensors(
    tensors: Mapping[str, Tensor], path: str | os.PathLike[str]
) -> None:
    """A `.safetensors` file of these tensors, whole or not there.

    Raises:
        StorageError: the disk refused; a file that was there before is intact.
    """
    dense = {key: value.detach().cpu().contiguous() for key, value in tensors.items()}
    _save(path, tensorfile.pieces(dense))


def _save(path: str | os.PathLike[str], data: Any) -> None:
    path = user_path(path).absolute()
    with disk_errors(f"cannot write {str(path)!r}"):
        make_durable(path.parent)
        write_file(path, data)


class _Sink:
    """What `torch.save` needs of a file, on a descriptor."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def write(self, data: Any) -> int:
        view = memoryview(data)
        fileops.write(self._fd, view)
        return view.nbytes

    def flush(self) -> None:
        """Nothing is held back."""


def _check_form(path: Path) -> bool:
    """Refuse, by its first bytes and its table of contents, what no torch wrote.

    True for an archive, as torch writes since 1.6, False for what it wrote before.
    Nothing is decompressed and no more than a table of contents is read, so that a
    damaged, sparse or hostile file of any size is refused at once.
    """
    with path.open("rb") as file:
        start = file.read(max(map(len, _BEGINNINGS)))
    if not start.startswith(_BEGINNINGS):
        raise CheckpointError(
            f"{str(path)!r} is no torch file, or damaged: it begins with "
            f"{start[:8]!r}; give a checkpoint folder, or a .pth or .safetensors file"
        )
    if start.startswith(_ZIP):
        _check_archive(path)
        return True
    return False


def _check_archive(path: Path) -> None:
    try:
        with _Sparing(path) as file, zipfile.ZipFile(file) as zipped:
            entries = zipped.infolist()
    except (zipfile.BadZipFile, NotImplementedError, ValueError) as error:
        raise CheckpointError(
            f"{str(path)!r} is damaged or not a torch file: {error}; take an older "
            "checkpoint"
        ) from error
    if any(entry.compress_type != zipfile.ZIP_STORED for entry in entries):
        # torch never does; a bomb would be
        raise CheckpointError(
            f"{str(path)!r} is a compressed archive, not a torch checkpoint; unpack it"
        )
    if sum(entry.file_size for entry in entries) > path.stat().st_size:
        raise CheckpointError(
            f"{str(path)!r} is damaged or not a torch file: its entries overlap"
        )


class _Sparing(io.BufferedReader):
    """A file of which no read takes more than a table of contents can have."""

    def __init__(self, path: Path) -> None:
        super().__init__(io.FileIO(path))

    def read(self, size: int | None = -1) -> bytes:
        if size is None or size < 0:
            size = os.fstat(self.fileno()).st_size - self.tell()
        if size > _CONTENTS:
            raise ValueError(f"it claims {size} bytes in one piece")
        return super().read(size)


def plain(value: Any, where: str) -> Any:
    """`value` with Python's own types in place of NumPy's and of subclasses.

    Raises:
        CheckpointError: `load_pickled` would refuse something in it, named by its path.
    """
    if type(value) in _PLAIN or isinstance(value, Tensor):
        return value
    if isinstance(value, numpy.ndarray) and value.dtype.kind in "biufc":
        return torch.from_numpy(numpy.ascontiguousarray(value))
    if isinstance(value, (numpy.generic, numpy.ndarray)):
        listed = value.tolist()
        if type(listed) is not type(value):
            return plain(listed, where)
    for kind in _PLAIN[1:]:
        if isinstance(value, kind):  # a subclass, such as a member of an IntEnum
            return kind(value)
    if isinstance(value, Mapping):
        return {
            plain(key, f"a key of {where}"): plain(item, f"{where}[{key!r}]")
            for key, item in value.items()
        }
    for kind in (list, tuple, set):
        if isinstance(value, kind):
            items = enumerate(value)
            return kind(plain(item, f"{where}[{index}]") for index, item in items)
    raise CheckpointError(
        f"{where} is a {type(value).__qualname__}, which a .pth file that loads safely "
        "cannot hold; give numbers, strings, tensors, or dicts and lists of them"
    )
