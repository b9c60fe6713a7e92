"""A checkpoint whose tensors each process writes by itself, as far as they are its own.

torch.distributed.checkpoint plans and writes: `__R_0.distcp` with the pieces of rank R,
and `.metadata`. It does so inside the write protocol of every other checkpoint:

    every rank      take: everything encoded, its own pieces on the host
    all             plan: who writes what                       dcp.save, step "plan"
    rank 0          .tmp-NAME-random/, locked; room for it?
    every rank      its file, hashed as it is written, fsync    dcp.save, step "write"
    rank 0          .metadata, .shards.json, the other parts, MANIFEST.json, rename

What fails on any rank, all learn in the two exchanges of `dcp.save`: nothing is
published, and what was there before is intact. The directory must be the same one for
all processes.
"""

from __future__ import annotations

import dataclasses
import errno
import hashlib
import io
import math
import os
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, cast

import torch
import torch.distributed.checkpoint as dcp
from torch import Tensor
from torch.distributed.checkpoint.filesystem import FileSystem
from torch.distributed.checkpoint.metadata import (
    Metadata,
    MetadataIndex,
    TensorStorageMetadata,
)
from torch.futures import Future

from devrun.checkpoint import fileops, sharded_index
from devrun.checkpoint.codec import has_shards, shared_memory
from devrun.checkpoint.draft import Draft, Snapshot
from devrun.checkpoint.manifest import FileEntry
from devrun.checkpoint.names import SHARDS
from devrun.checkpoint.sharded_index import Piece, ShardedTensor
from devrun.checkpoint.storage import storage_errors
from devrun.dist import get_dist_info, is_main
from devrun.errors import CheckpointError, DevrunError
from devrun.ranks import together
from devrun.tensors import is_spread, map_tensors

_NOTHING = torch.empty(0)


@dataclass(frozen=True)
class ShardedSnapshot(Snapshot):
    """What a checkpoint will hold, each process its share; `write` may come later.

    Its `files`, without the tensors of the sharded parts, are those of rank 0.
    """

    tensors: Mapping[str, Tensor] = field(default_factory=dict)
    """`PART/NAME` -> the tensor, to plan with."""
    pieces: Mapping[str, Tensor] = field(default_factory=dict)
    """The same names -> what this process has of it: contiguous, on the host."""

    @classmethod
    def take(
        cls,
        parts: Mapping[str, Any],
        meta: Mapping[str, Any],
        to_host: Callable[[Tensor], Tensor] = shared_memory,
    ) -> ShardedSnapshot:
        """As `Snapshot.take` takes its arguments; every rank gives its own.

        A part that has a sharded tensor, on any device mesh, is written in pieces. The
        tensors in it that are not sharded are those of rank 0.

        Raises:
            CheckpointError: a name or a value that cannot be saved, on any rank.
        """
        return together(lambda: cls._taken(parts, meta, to_host))

    @classmethod
    def _taken(
        cls,
        parts: Mapping[str, Any],
        meta: Mapping[str, Any],
        to_host: Callable[[Tensor], Tensor],
    ) -> ShardedSnapshot:
        main = is_main()
        if not main:  # what is not sharded is that of rank 0, and may be empty here
            parts = {part: tree for part, tree in parts.items() if has_shards(tree)}
            parts = map_tensors(lambda t: t if is_spread(t) else _NOTHING, parts)
        whole = Snapshot.take(parts, meta, to_host)
        tensors: dict[str, Tensor] = {}
        files = dict(whole.files)
        for part in parts:
            found = files.get(f"{part}.safetensors")
            if not isinstance(found, dict) or not has_shards(found):
                continue
            del files[f"{part}.safetensors"]
            for name, tensor in found.items():
                if main or is_spread(tensor):
                    tensors[f"{part}/{name}"] = tensor
        pieces: dict[str, Any] = dict(tensors)
        for key, tensor in pieces.items():
            if is_spread(tensor):
                pieces[key] = to_host(tensor.to_local())
        return cls(files, whole.manifest, tensors, pieces)

    def write(self, root: str | os.PathLike[str], name: str, ranks: Any = None) -> Path:
        """Write it as `root/name`, all ranks together; its path, once it is durable.

        Args:
            ranks: the process group for what they exchange; that of the run by default.

        Raises:
            StorageError, CheckpointError: of the rank that failed, on every rank; what
                was there before is intact.
        """
        root = Path(root)
        writer = _Writer(self, root, name)
        with (
            writer.draft,
            storage_errors(f"cannot write checkpoint {str(root / name)!r}"),
        ):
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # that there is one process only
                    dcp.save(
                        dict(self.tensors),
                        storage_writer=writer,
                        planner=_Planner(self.pieces),
                        process_group=ranks,
                    )
            except dcp.api.CheckpointException as failures:
                raise _first(failures.failures) from failures
        return root / name


def _first(failures: Mapping[int, Any]) -> BaseException:
    """What the lowest of the ranks that failed had to say."""
    rank, (cause, _) = min(failures.items())
    said = f"rank {rank}: " if get_dist_info()[1] > 1 else ""
    if isinstance(cause, DevrunError) or not isinstance(cause, Exception):
        return cause
    if isinstance(cause, OSError):
        return OSError(cause.errno, f"{said}{cause.strerror or cause}")
    reason = (str(cause).splitlines() or [""])[0]
    return CheckpointError(
        f"cannot write the shards: {said}{type(cause).__name__}: {reason:.200}"
    )


class _Planner(dcp.DefaultSavePlanner):
    """Who writes what; the bytes are those that were set aside when it was decided."""

    def __init__(self, pieces: Mapping[str, Tensor]) -> None:
        super().__init__(dedup_save_to_lowest_rank=True)
        self._pieces = pieces

    def create_global_plan(self, all_plans: list[dcp.SavePlan]) -> Any:
        """Without what is empty on a rank, and may have another name there.

        A weight that is tied has the name that it has on rank 0.
        """
        known = self._pieces.keys()
        plans = all_plans[:1]
        for plan in all_plans[1:]:
            items = [i for i in plan.items if i.index.fqn in known and _volume(i)]
            plans.append(dataclasses.replace(plan, items=items))
        return super().create_global_plan(plans)

    def resolve_data(self, write_item: Any) -> Tensor:
        return self._pieces[write_item.index.fqn]


class _Place(NamedTuple):
    """Where a rank writes: what the plan of rank 0 tells it."""

    rank: int
    directory: str

    @property
    def prefix(self) -> str:
        """Of its files; torch's writer asks for it."""
        return f"__{self.rank}_"


class _Share(list[Any]):
    """What a rank has written, as torch's writer lists it, and the `entries`."""

    entries: list[FileEntry]


class _Writer(dcp.FileSystemWriter):
    """torch's writer, of files that are hashed as they are written."""

    def __init__(self, whole: Snapshot, root: Path, name: str) -> None:
        super().__init__(root, sync_files=False)
        self._whole, self._root, self._name = whole, root, name
        self.draft = ExitStack()
        """Of rank 0, once there is something to clear away."""
        self._open: Draft | None = None

    def storage_meta(self) -> None:
        """Nothing: a path and a random number would make equal checkpoints differ."""

    def prepare_local_plan(self, plan: dcp.SavePlan) -> dcp.SavePlan:
        return plan

    def prepare_global_plan(self, plans: list[dcp.SavePlan]) -> list[dcp.SavePlan]:
        items: list[Any] = [item for plan in plans for item in plan.items]
        needed = self._whole.size + sum(
            _volume(item) * item.tensor_data.properties.dtype.itemsize for item in items
        )
        draft = Draft(self._root, self._name, needed)
        self._open = self.draft.enter_context(draft)
        return [
            dataclasses.replace(plan, storage_data=_Place(rank, draft.directory))
            for rank, plan in enumerate(plans)
        ]

    def write_data(self, plan: dcp.SavePlan, planner: Any) -> Future[Any]:
        place = self._root / plan.storage_data.directory
        if not place.is_dir():
            raise CheckpointError(
                f"rank {plan.storage_data.rank} does not see what rank 0 made in "
                f"{str(self._root)!r}: write checkpoints where all processes see them"
            )
        with fileops.directory(place) as fd:
            self.fs = _Files(fd)
            share = _Share(super().write_data(plan, planner).value())
        share.entries = list(self.fs.entries.values())
        done: Future[Any] = Future()
        done.set_result(share)
        return done

    def finish(self, metadata: Metadata, results: list[Any]) -> None:
        draft = cast("Draft", self._open)
        self.fs = _Files(draft.fd)
        super().finish(metadata, results)
        entries = [entry for share in results for entry in share.entries]
        files = {SHARDS: sharded_index.render(_index(metadata)), **self._whole.files}
        whole = dataclasses.replace(self._whole, files=files)
        draft.finish(whole, [*entries, *self.fs.entries.values()])


class _Files(FileSystem):
    """What torch's writer does with files, in a directory that is open."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self.entries: dict[str, FileEntry] = {}

    @contextmanager
    def create_stream(self, path: Any, mode: str) -> Iterator[Any]:
        name = Path(path).name
        with ExitStack() as stack:
            fd = fileops.create(name, self._fd)
            stack.callback(os.close, fd)
            stream = _Hashed(fd)
            try:
                yield stream
            except RuntimeError:  # of torch.save, which hides the reason
                if stream.refusal is not None:
                    raise stream.refusal from None
                raise
            fileops.sync(fd)
            written = os.fstat(fd).st_size
        if written != stream.tell():
            raise OSError(errno.EIO, f"{name} has {written} bytes, not {stream.tell()}")
        self.entries[name] = FileEntry(name, written, stream.sha256.hexdigest())

    def rename(self, path: Any, new_path: Any) -> None:
        old, new = Path(path).name, Path(new_path).name
        fileops.rename(old, new, self._fd)
        self.entries[new] = dataclasses.replace(self.entries.pop(old), name=new)

    def exists(self, path: Any) -> bool:
        return fileops.file_type(Path(path).name, self._fd) is not None


class _Hashed(io.RawIOBase):
    """A new file; what is written to it is hashed."""

    def __init__(self, fd: int) -> None:
        super().__init__()
        self._fd, self._size = fd, 0
        self.sha256 = hashlib.sha256()
        self.refusal: OSError | None = None
        """Of the disk."""

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        self.sha256.update(view)  # now: torch's writer uses its memory again
        try:
            fileops.write(self._fd, view)
        except OSError as error:
            self.refusal = error
            raise
        self._size += len(view)
        return len(view)

    def tell(self) -> int:
        return self._size


def _volume(item: Any) -> int:
    return math.prod(item.tensor_data.chunk.sizes)


def _index(metadata: Metadata) -> dict[str, ShardedTensor]:
    """What `.metadata` says, in plain words."""
    index = {}
    facts = cast("dict[str, TensorStorageMetadata]", metadata.state_dict_metadata)
    for key, tensor in facts.items():
        pieces = []
        for chunk in tensor.chunks:
            place = metadata.storage_data[MetadataIndex(key, chunk.offsets)]
            if math.prod(chunk.sizes):
                pieces.append(
                    Piece(
                        tuple(chunk.offsets),
                        tuple(chunk.sizes),
                        place.relative_path,
                        place.offset,
                        place.length,
                    )
                )
        index[key] = ShardedTensor(
            tensor.properties.dtype, tuple(tensor.size), tuple(pieces)
        )
    return index
