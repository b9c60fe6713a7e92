"""`read_checkpoint` and `verify_checkpoint`: nothing is used before all of it is right.

A file is read once; its size and sha256 are compared with the manifest, and what is
used are those very bytes.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from devrun.checkpoint import fileops, tensorfile
from devrun.checkpoint.codec import decode_tree
from devrun.checkpoint.manifest import MAX_MANIFEST, FileEntry, Manifest
from devrun.checkpoint.names import MANIFEST
from devrun.checkpoint.tensorfile import Like
from devrun.dist import get_dist_info
from devrun.errors import CheckpointError, nearest
from devrun.files import checkpoints_near, parse_json
from devrun.place import Place
from devrun.ranks import together

_OWN = re.compile(r"model|optimizer|adapter|hooks|trainer|rng-rank\d+")
"""Names of the parts that a run makes itself, each of them a dict."""


class MissingCheckpointError(CheckpointError, FileNotFoundError):
    """There is no checkpoint at this path; the message has the nearest names."""


@dataclass(frozen=True)
class Checkpoint:
    """What was read: the manifest and the decoded parts, tensors on the CPU."""

    path: Path
    manifest: Manifest
    parts: dict[str, Any]

    @property
    def step(self) -> int:
        return self.manifest.step

    def __getitem__(self, part: str) -> Any:
        try:
            return self.parts[part]
        except KeyError:
            raise CheckpointError(
                f"{str(self.path)!r} has no part {part!r}; {nearest(part, self.parts)}"
            ) from None

    def __contains__(self, part: object) -> bool:
        return part in self.parts

    def get(self, part: str, default: Any = None) -> Any:
        """The part, or `default` where the checkpoint has none of that name."""
        return self.parts.get(part, default)


def read_manifest(path: str | os.PathLike[str]) -> Manifest:
    """The manifest of `path`, after checking the names and sizes of its files.

    Raises:
        CheckpointError: not a checkpoint, or damaged where that shows without
            reading the files.
    """
    with _opened(Path(path)) as manifest:
        return manifest


def verify_checkpoint(path: str | os.PathLike[str]) -> Manifest:
    """The manifest of `path`, once every byte of every file has been checked.

    Raises:
        CheckpointError: not a checkpoint, or damaged; names the file and the damage.
    """
    path = Path(path)
    with _opened(path) as manifest:
        for entry in manifest.files:
            entry.check(entry.read(fileops.digest, path))
        return manifest


def read_checkpoint(
    path: str | os.PathLike[str],
    *,
    parts: Iterable[str] | None = None,
    like: Like | None = None,
) -> Checkpoint:
    """The checkpoint at `path`, or the named `parts` of it.

    Args:
        parts: read only these (and check the hashes of only their files); one that
            the checkpoint lacks is an error.
        like: what each process is to have of tensors that were saved in pieces. It
            reads its own, and checks a share of the files; all must call this together.

    Raises:
        CheckpointError: not a checkpoint, damaged, or a part is not there; with `like`
            on every process, also where another one found it.
    """
    if like is None:
        return _read(Path(path), parts)
    together(lambda: _check_share(Path(path)))
    return together(lambda: _read(Path(path), parts, like))


def _check_share(path: Path) -> None:
    """Compare the hashes of some of the files in pieces: all processes, of all."""
    rank, world = get_dist_info()
    with _opened(path) as manifest:
        for entry in manifest.pieces[rank::world]:
            entry.check(entry.read(fileops.digest, path))


def _read(
    path: Path, parts: Iterable[str] | None, like: Like | None = None
) -> Checkpoint:
    with _opened(path) as manifest:
        known = manifest.parts
        wanted = known if parts is None else list(parts)
        for part in wanted:
            if part not in known:
                raise CheckpointError(
                    f"{str(path)!r} has no part {part!r}; {nearest(part, known)}"
                )
        data = {
            entry.name: _content(entry, path)
            for entry in manifest.files
            if entry.part in wanted
        }
        divided = [
            part
            for part in wanted
            if f"{part}.safetensors" not in data
            and b'"$tensor"' in data.get(f"{part}.json", b"")
        ]
        if divided and manifest.pieces:
            from devrun.checkpoint.sharded import read_shards  # imports for long

            for entry in manifest.pieces if like is None else ():
                entry.check(entry.read(fileops.digest, path))
            files = [path / entry.name for entry in manifest.pieces]
            pieces = read_shards(files, divided, like)
            data.update((f"{part}.safetensors", pieces[part]) for part in pieces)
        return Checkpoint(
            path, manifest, {part: _decode(part, data) for part in wanted}
        )


def _decode(part: str, data: dict[str, Any]) -> Any:
    try:
        tree = parse_json(data[f"{part}.json"])
        tensors = data.pop(f"{part}.safetensors", {})
    except KeyError as error:
        raise CheckpointError(f"part {part!r} has no {error.args[0]}") from error
    except ValueError as error:
        raise CheckpointError(f"part {part!r} is damaged: {error}") from error
    found = decode_tree(tree, tensors, f"part {part!r}")
    # a hook adds to the tree what it likes
    if _OWN.fullmatch(part) and not isinstance(found, dict):
        kind = "null" if found is None else type(found).__name__
        raise CheckpointError(f"part {part!r} is malformed: {kind} in place of a dict")
    return found


@contextmanager
def _opened(path: Path) -> Iterator[Manifest]:
    """The manifest, whose files are there; messages begin with the path."""
    try:
        data = fileops.read_file(path / MANIFEST, limit=MAX_MANIFEST)
        manifest = Manifest.parse(data)
        _check_listing(path, manifest)
        yield manifest
    except CheckpointError as error:
        error.locate(Place(), repr(str(path)))
        raise
    except FileNotFoundError as error:
        if path.is_dir():
            raise CheckpointError(
                f"{str(path)!r} has no {MANIFEST}: it is no checkpoint; name one of "
                "the directories in a run's checkpoints/"
            ) from error
        raise MissingCheckpointError(missing_message(path)) from error
    except NotADirectoryError as error:
        raise CheckpointError(
            f"{str(path)!r} is a file, no checkpoint directory of devrun: load_from "
            "(--load-from) takes the weights of a file, resume_from also a .pth of MMCV"
        ) from error
    except OSError as error:
        reason = error.strerror or str(error)
        raise CheckpointError(f"{str(path)!r} cannot be read: {reason}") from error


def _check_listing(path: Path, manifest: Manifest) -> None:
    """The directory holds exactly the listed regular files, of the listed sizes."""
    listed = {entry.name: entry for entry in manifest.files}
    present = set(os.listdir(path)) - {MANIFEST}
    for name in sorted(listed.keys() - present):
        raise CheckpointError(f"{name} is missing")
    for name in sorted(present - listed.keys()):
        raise CheckpointError(f"{name!r} does not belong to it; remove that file")
    for name, entry in listed.items():
        if fileops.file_type(path / name) != "file":
            raise CheckpointError(f"{name} is not a regular file")
        size = os.lstat(path / name).st_size
        if size != entry.size:
            raise CheckpointError(f"{name} has {size} bytes instead of {entry.size}")


def _content(entry: FileEntry, folder: Path) -> Any:
    """The text or the tensors of a file."""
    data = entry.read(fileops.read_file, folder)
    entry.check(hashlib.sha256(data).hexdigest())
    if entry.name.endswith(".json"):
        return data
    try:
        return tensorfile.read(data)
    except ValueError as error:
        raise CheckpointError(f"{entry.name} is damaged: {error}") from error


def missing_message(path: Path) -> str:
    """One line for a path that does not exist, with the nearest names beside it."""
    folder = path.parent
    if not folder.is_dir():
        return f"no checkpoint {str(path)!r}: there is no directory {str(folder)!r}"
    known = [os.path.relpath(one, folder) for one in checkpoints_near(path)]
    hint = nearest(path.name, known) or "no checkpoint is near there"
    return f"no checkpoint {path.name!r} in {str(folder)!r}; {hint}"
