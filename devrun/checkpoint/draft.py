"""`write_checkpoint`: a fresh directory that is either whole or not there.

    encode everything                    nothing on disk yet
    .tmp-NAME-random/
      each file: reserve, write and hash, fsync, check its size
      MANIFEST.json, fsync
    fsync .tmp-NAME-random/
    rename to NAME, fsync the parent     from here on it counts
    latest.json                          advisory

A failure before the rename removes the temporary directory; older checkpoints are
never touched. `fileops` does every step, so that a test can stop at any of them.
"""

from __future__ import annotations

import errno
import hashlib
import logging
import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Dict, Union

from torch import Tensor

from devrun.checkpoint import fileops, tensorfile
from devrun.checkpoint.codec import encode_tree, shared_memory
from devrun.checkpoint.manifest import FileEntry, Manifest
from devrun.checkpoint.names import MANIFEST, check_name, temporary
from devrun.checkpoint.storage import clear_directory, make_durable, write_file
from devrun.errors import StorageError
from devrun.files import disk_errors, json_line

_ENDINGS = (".json", ".safetensors")
_LOGGER = logging.getLogger("devrun.checkpoint")
Content = Union[bytes, Dict[str, Tensor]]


@dataclass(frozen=True)
class Snapshot:
    """Everything a checkpoint will hold, encoded; `write` may come later.

    Its tensors are on the host: the very memory of the tree where nothing says
    otherwise, which must then not change before it is written.
    """

    files: Mapping[str, Content]
    """File name -> what it will hold, in the order of writing."""
    manifest: Manifest

    @classmethod
    def take(
        cls,
        parts: Mapping[str, Any],
        meta: Mapping[str, Any],
        to_host: Callable[[Tensor], Tensor] = shared_memory,
    ) -> Snapshot:
        """As `write_checkpoint` takes its arguments; `to_host` as `encode_tree`.

        Raises:
            CheckpointError: a name or a value that cannot be saved.
        """
        manifest = Manifest.describe(meta)
        files: dict[str, Content] = {}
        for part, tree in parts.items():
            encoded = encode_tree(tree, part, to_host)
            if encoded.tensors:
                files[f"{part}.safetensors"] = encoded.tensors
            files[f"{part}.json"] = json_line(encoded.tree)
        return cls(files, manifest)

    def write(self, root: str | os.PathLike[str], name: str) -> Path:
        """Write it as `root/name`; its path, once it is durable.

        Raises:
            StorageError: the disk refused; what was there before is intact.
        """
        with Draft(root, name) as draft:
            return draft.finish(self)


class Draft:
    """Context manager: a checkpoint that nobody sees before `finish`.

    What leads out of it before that removes it.

    Args:
        root, name: it becomes `root/name`.

    Raises:
        StorageError: the disk refused; what was there before is intact.
    """

    def __init__(self, root: str | os.PathLike[str], name: str) -> None:
        self._target = Path(root).absolute() / check_name(name)
        self.directory = self._target.with_name(temporary("tmp", name))
        """Where it is until then."""

    def __enter__(self) -> Draft:
        with self._errors():
            make_durable(self._target.parent)
            _check_target(self._target)
            fileops.make_directory(self.directory)
        return self

    def __exit__(self, *error: Any) -> None:
        with suppress(OSError):  # of one that is published there is nothing
            clear_directory(self.directory)

    def finish(self, snapshot: Snapshot, others: Iterable[FileEntry] = ()) -> Path:
        """Write `snapshot`, beside `others` that are there already, and publish all.

        Raises:
            StorageError: the disk refused; what was there before is intact.
        """
        target = self._target
        with self._errors():
            entries = [
                write_one(self.directory / file, content)
                for file, content in snapshot.files.items()
            ]
            files = (*entries, *others)
            complete = replace(snapshot.manifest, files=files).render()
            write_one(self.directory / MANIFEST, complete)
            fileops.sync_directory(self.directory)
            _publish(self.directory, target)
        try:
            write_pointer(target.parent, "latest", target.name, snapshot.manifest.step)
        except StorageError as error:  # the checkpoint counts without it
            _LOGGER.warning("%s", error)
        return target

    def _errors(self) -> AbstractContextManager[None]:
        return disk_errors(f"cannot write checkpoint {str(self._target)!r}")


def write_pointer(
    root: str | os.PathLike[str], pointer: str, name: str, step: int
) -> None:
    """Point `root/POINTER.json` (`latest`, `best`) at the checkpoint `name`.

    Only people and retention read it: the newest whole checkpoint is found without.

    Raises:
        StorageError: the disk refused; the pointer is as it was.
    """
    path = Path(root).absolute() / f"{pointer}.json"
    with disk_errors(f"cannot write {str(path)!r}"):
        write_file(path, [json_line({"checkpoint": check_name(name), "step": step})])


def _check_target(path: Path) -> None:
    kind = fileops.file_type(path)
    if kind is None:
        return
    if kind == "directory":
        entries = os.listdir(path)
        if MANIFEST in entries or (
            entries and all(entry.endswith(_ENDINGS) for entry in entries)
        ):
            return
    raise OSError(
        errno.EEXIST, "something that is no checkpoint stands there; move it away"
    )


def write_one(
    path: Path, content: Content, about: Mapping[str, str] | None = None
) -> FileEntry:
    """Write one file to the disk; `about` as `tensorfile.pieces` takes it.

    The hash is of the bytes that the kernel was given, so that whatever happens to
    them on the way to the disk shows when the file is read.

    Raises:
        OSError: the disk refused.
    """
    pieces: Iterable[Any] = [content]
    if isinstance(content, bytes):
        size = len(content)
    else:
        size = tensorfile.size_of(content, about)
        pieces = tensorfile.pieces(content, about)
    sha256 = hashlib.sha256()
    fd = fileops.create(path)
    try:
        fileops.reserve(fd, size)
        for piece in pieces:
            sha256.update(piece)
            fileops.write(fd, piece)
        fileops.sync(fd)
        written = os.fstat(fd).st_size
    finally:
        os.close(fd)
    if written != size:
        raise OSError(errno.EIO, f"{path.name} has {written} bytes instead of {size}")
    return FileEntry(path.name, size, sha256.hexdigest())


def _publish(temp: Path, target: Path) -> None:
    """Rename the finished directory; a former one of that name is moved aside."""
    aside = None
    try:
        if fileops.file_type(target) is not None:
            aside = target.with_name(temporary("old", target.name))
            fileops.rename(target, aside)
        fileops.rename(temp, target)
    except BaseException:
        if aside is not None and fileops.file_type(target) is None:
            fileops.rename(aside, target)
        raise
    fileops.sync_directory(target.parent)
    if aside is not None:
        with suppress(OSError):  # swept at the next start
            clear_directory(aside)
