"""`Shards`: tensors from the files that each process wrote its pieces to.

torch's `DefaultLoadPlanner` decides which pieces make up what is wanted, whole tensors
or the present process's own shards. The bytes are read here: a file once and in order,
hashed on the way, and each piece taken out of the archive that `torch.save` made of it
without unpickling anything.
"""

from __future__ import annotations

import io
import math
import struct
import warnings
import zipfile
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any, NamedTuple

import torch
import torch.distributed.checkpoint as dcp
from torch import Tensor
from torch.distributed.checkpoint import metadata as facts
from torch.futures import Future

from devrun.checkpoint import fileops
from devrun.checkpoint.entries import check_digest, from_file
from devrun.checkpoint.hasher import Hasher
from devrun.checkpoint.manifest import Manifest
from devrun.checkpoint.names import SHARDS
from devrun.checkpoint.sharded_index import Index, Like, Piece, parse
from devrun.errors import CheckpointError, DevrunError

_MAX_INDEX = 1 << 31
_GAP = 1 << 24
_LOCAL_HEADER = struct.Struct("<26xHH")  # lengths of the name and of the rest


class Shards:
    """The sharded tensors of an open checkpoint directory.

    Raises:
        CheckpointError: their index is damaged or does not fit the files.
    """

    def __init__(self, fd: int, manifest: Manifest, *, verify: bool = True) -> None:
        self._fd, self._verify = fd, verify
        self._files = {entry.name: entry for entry in manifest.files}
        data = from_file(_read_index, fd, self._files[SHARDS])
        if verify:
            with Hasher() as hasher:
                hasher.update(data)
                check_digest(self._files[SHARDS], hasher.hexdigest())
        sizes = {name: entry.size for name, entry in self._files.items()}
        self.index: Index = parse(data, sizes)

    def assembled(
        self, parts: Iterable[str], like: Like | None = None
    ) -> dict[str, dict[str, Tensor]]:
        """The tensors of `parts`: part -> name -> tensor, whole ones on the CPU.

        Args:
            like: gives those of which only the piece of this process is wanted; files
                without any of it are not read.

        Raises:
            CheckpointError: a file is damaged.
        """
        chosen = set(parts)
        targets: dict[str, Tensor] = {}
        for key, saved in self.index.items():
            if key.partition("/")[0] not in chosen:
                continue
            spread = None if like is None else like(key, saved.shape, saved.dtype)
            if spread is None:
                spread = torch.empty(saved.shape, dtype=saved.dtype)
            targets[key] = spread
        self.fill(targets)
        found: dict[str, dict[str, Tensor]] = defaultdict(dict)
        for key, tensor in targets.items():
            part, _, name = key.partition("/")
            found[part][name] = tensor
        return dict(found)

    def fill(self, targets: Mapping[str, Tensor]) -> None:
        """Give each target, of the type and shape in the index, its values.

        Of a `DTensor` it is the piece of this process; no process waits for another.

        Raises:
            CheckpointError: a file is damaged; what was filled until then is not kept
                by anybody.
        """
        planner = dcp.DefaultLoadPlanner(
            flatten_state_dict=False, flatten_sharded_tensors=False
        )
        wanted = {key: target for key, target in targets.items() if target.numel()}
        if not wanted:
            return
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # that it loads by itself
                dcp.load(
                    wanted,
                    storage_reader=_Reader(self),
                    planner=planner,
                    no_dist=True,
                )
        except dcp.api.CheckpointException as error:
            cause: Any = next(iter(error.failures.values()))[0]
            if isinstance(cause, (DevrunError, OSError)):
                raise cause from error
            reason = f"{cause}".split("\n", 1)[0]
            raise CheckpointError(f"its shards are damaged: {reason:.200}") from error

    def read(self, name: str, asked: list[_Asked], planner: dcp.LoadPlanner) -> None:
        """Give the planner what it asked for of the file `name`."""
        asked.sort(key=lambda each: each.piece.at)
        entry = self._files[name]
        with ExitStack() as stack:
            hasher = stack.enter_context(Hasher()) if self._verify else None
            seen = None if hasher is None else hasher.update
            from_file(_read_pieces, self._fd, entry, asked, planner, seen)
            if hasher is not None:
                check_digest(entry, hasher.hexdigest())


class _Asked(NamedTuple):
    """A piece, and what the planner wants of it."""

    piece: Piece
    dtype: torch.dtype
    items: list[dcp.ReadItem]


class _Reader(dcp.StorageReader):
    """The storage as torch's loader sees it."""

    def __init__(self, shards: Shards) -> None:
        super().__init__()
        self._shards = shards
        self._pieces: dict[facts.MetadataIndex, tuple[Piece, torch.dtype]] = {}

    def read_metadata(self, *_: Any, **__: Any) -> facts.Metadata:
        tensors: dict[str, Any] = {}
        for key, tensor in self._shards.index.items():
            chunks = []
            for piece in tensor.pieces:
                where, sizes = torch.Size(piece.offsets), torch.Size(piece.sizes)
                chunks.append(facts.ChunkStorageMetadata(where, sizes))
                self._pieces[facts.MetadataIndex(key, where)] = piece, tensor.dtype
            about = facts.TensorProperties(dtype=tensor.dtype)
            size = torch.Size(tensor.shape)
            tensors[key] = facts.TensorStorageMetadata(about, size, chunks)
        return facts.Metadata(tensors)

    def set_up_storage_reader(self, *_: Any, **__: Any) -> None:
        """The index is there already."""

    def prepare_local_plan(self, plan: dcp.LoadPlan) -> dcp.LoadPlan:
        return plan

    def prepare_global_plan(self, plans: list[dcp.LoadPlan]) -> list[dcp.LoadPlan]:
        return plans

    def read_data(self, plan: dcp.LoadPlan, planner: Any) -> Future[None]:
        asked: dict[facts.MetadataIndex, _Asked] = {}
        by_file: dict[str, list[_Asked]] = defaultdict(list)
        for item in plan.items:
            index = item.storage_index
            if index not in asked:
                asked[index] = _Asked(*self._pieces[index], [])
                by_file[asked[index].piece.file].append(asked[index])
            asked[index].items.append(item)
        for name in sorted(by_file):
            self._shards.read(name, by_file[name], planner)
        done: Future[None] = Future()
        done.set_result(None)
        return done

    def reset(self, checkpoint_id: Any = None) -> None:
        """Nothing is kept from one load to the next."""

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: Any) -> bool:
        return True


def _read_index(name: str, fd: int, size: int) -> bytes:
    return fileops.read_file(name, fd, size, limit=_MAX_INDEX)


def _read_pieces(
    name: str, fd: int, size: int, asked: Sequence[_Asked], planner: Any, seen: Any
) -> None:
    """Read the whole file, in order, as its hash needs it."""
    with fileops.reading(name, fd, size, seen) as (fill, _):
        position = 0
        for piece, dtype, items in asked:
            _skip(fill, piece.at - position)
            tensor = _unpacked(_filled(fill, piece.length), piece, dtype)
            position = piece.at + piece.length
            for item in items:
                part = tensor
                for axis, start in enumerate(item.storage_offsets):
                    part = part.narrow(axis, start, item.lengths[axis])
                target = planner.resolve_tensor(item).detach()
                target.copy_(part)
                planner.commit_tensor(item, target)
        _skip(fill, size - position)


def _skip(fill: Any, count: int) -> None:
    while count > 0:
        _filled(fill, min(count, _GAP))
        count -= _GAP


def _filled(fill: Any, size: int) -> Tensor:
    memory = torch.empty(size, dtype=torch.uint8)
    fill(memory.numpy().data)
    return memory


def _unpacked(record: Tensor, piece: Piece, dtype: torch.dtype) -> Tensor:
    """The tensor in a record, as a view of its bytes.

    The record is the archive that `torch.save` writes; of the entries only the one
    with the data is looked at, and its type and sizes come from the index.

    Raises:
        ValueError: it is no such archive, or has not as many bytes.
    """
    memory = record.numpy().data
    needed = math.prod(piece.sizes) * dtype.itemsize
    try:
        with zipfile.ZipFile(_View(memory)) as archive:
            (entry,) = (e for e in archive.infolist() if e.filename.endswith("/data/0"))
    except (zipfile.BadZipFile, NotImplementedError, OSError) as error:
        raise ValueError(f"a piece is no archive: {error}") from error
    if entry.compress_type != zipfile.ZIP_STORED or entry.file_size != needed:
        raise ValueError(f"a piece has {entry.file_size} bytes instead of {needed}")
    start = entry.header_offset + _LOCAL_HEADER.size
    if not 0 <= entry.header_offset <= len(memory) - _LOCAL_HEADER.size:
        raise ValueError("a piece begins outside its archive")
    start += sum(_LOCAL_HEADER.unpack_from(memory, entry.header_offset))
    if start + needed > len(memory):
        raise ValueError("a piece ends outside its archive")
    data = record[start : start + needed]
    if data.data_ptr() % dtype.itemsize:
        data = data.clone()
    return data.view(dtype).view(piece.sizes)


class _View(io.RawIOBase):
    """Memory as a file to read; not copied."""

    def __init__(self, memory: memoryview) -> None:
        super().__init__()
        self._memory, self._at = memory, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = (0, self._at, len(self._memory))[whence]
        if base + offset < 0:
            raise OSError("before its beginning")
        self._at = base + offset
        return self._at

    def tell(self) -> int:
        return self._at

    def readinto(self, buffer: Any) -> int:
        part = self._memory[self._at : self._at + len(buffer)]
        buffer[: len(part)] = part
        self._at += len(part)
        return len(part)
