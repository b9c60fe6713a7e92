"""Checkpoints of which each process writes the tensors that are its own.

torch.distributed.checkpoint plans who writes what, and what a process has to read; the
files are those of its `HuggingFaceStorageWriter`, safetensors with the offsets of the
pieces in their header, and its `HuggingFaceStorageReader` reads them. They are written
inside the protocol of every other checkpoint:

    every rank      take: everything encoded, its own pieces on the host
    all             plan: who writes what                       dcp.save, step "plan"
    rank 0          .tmp-NAME-random/
    every rank      shard-RANK-....safetensors, hashed, fsync   dcp.save, step "write"
    rank 0          the other parts, MANIFEST.json, rename

What fails on any rank, all learn in the two exchanges of `dcp.save`: nothing is
published, and what was there before is intact. The directory must be the same one for
all processes.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, cast

import torch
import torch.distributed.checkpoint as dcp
from torch import Tensor
from torch.futures import Future

from devrun.checkpoint import tensorfile
from devrun.checkpoint.codec import has_shards, shared_memory
from devrun.checkpoint.draft import Draft, Snapshot, write_one
from devrun.checkpoint.manifest import FileEntry
from devrun.checkpoint.names import is_part
from devrun.checkpoint.tensorfile import Like
from devrun.dist import get_dist_info, is_main
from devrun.errors import CheckpointError, DevrunError
from devrun.files import disk_errors
from devrun.ranks import together
from devrun.tensors import is_spread, map_tensors
from devrun.torch_features import needs

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
            UnsupportedFeatureError: this torch cannot read such files.
        """
        needs("2.9", "a checkpoint in pieces")
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
        pieces = {
            key: to_host(cast("Any", tensor).to_local())
            if is_spread(tensor)
            else tensor
            for key, tensor in tensors.items()
        }
        for key, piece in pieces.items():
            if piece.dtype not in tensorfile.STORED:
                raise CheckpointError(
                    f"{key} is divided and of {piece.dtype}, which pieces of a "
                    "checkpoint cannot hold; give checkpoint_config `full: true`"
                )
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
        explained = disk_errors(f"cannot write checkpoint {str(root / name)!r}")
        with writer.draft, explained, _failures("cannot write the shards"):
            dcp.save(
                dict(self.tensors),
                storage_writer=writer,
                planner=_Planner(self.pieces),
                process_group=ranks,
            )
        return root / name


def read_shards(
    files: Sequence[Path], parts: Sequence[str], like: Like | None = None
) -> dict[str, dict[str, Tensor]]:
    """The tensors in pieces of `parts`: part -> name -> tensor, whole ones on the CPU.

    Args:
        files: of the pieces, in one directory; their hashes were compared.
        like: gives those of which only the piece of this process is wanted.

    Raises:
        CheckpointError: they do not fit together.
        UnsupportedFeatureError: this torch cannot read such files.
    """
    needs("2.9", "a checkpoint in pieces")
    reader: Any = dcp.HuggingFaceStorageReader(str(files[0].parent))
    reader.fs = _listing(list(map(str, files)))
    targets: dict[str, Tensor] = {}
    with _failures("its shards are damaged"):
        for key, saved in reader.read_metadata().state_dict_metadata.items():
            _check_whole(key, saved)
            if key.partition("/")[0] in parts:
                dtype = saved.properties.dtype
                spread = None if like is None else like(key, saved.size, dtype)
                whole = torch.zeros(saved.size, dtype=dtype) if spread is None else None
                targets[key] = cast("Tensor", whole if spread is None else spread)
        if wanted := {key: target for key, target in targets.items() if target.numel()}:
            dcp.load(
                wanted,
                storage_reader=reader,
                planner=dcp.DefaultLoadPlanner(
                    flatten_state_dict=False, flatten_sharded_tensors=False
                ),
                no_dist=True,
            )
    found: dict[str, dict[str, Tensor]] = defaultdict(dict)
    for key, tensor in targets.items():
        part, _, name = key.partition("/")
        found[part][name] = tensor
    return found


@contextmanager
def _failures(what: str) -> Iterator[None]:
    """Turn what torch raises into one line: what the lowest rank that failed said."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that there is one process only
            yield
    except (DevrunError, OSError):
        raise
    except dcp.api.CheckpointException as failures:
        rank, (cause, _) = min(failures.failures.items())
        if isinstance(cause, DevrunError) or not isinstance(cause, Exception):
            raise cause from failures
        said = f"rank {rank}: " if get_dist_info()[1] > 1 else ""
        if isinstance(cause, OSError):
            reason = f"{said}{cause.strerror or cause}"
            raise OSError(cause.errno, reason) from failures
        raise CheckpointError(f"{what}: {said}{_first_line(cause)}") from failures
    except Exception as error:
        raise CheckpointError(f"{what}: {_first_line(error)}") from error


def _first_line(error: BaseException) -> str:
    lines = str(error).splitlines() or [""]
    return f"{type(error).__name__}: {lines[0]:.200}"


def _check_whole(key: str, saved: Any) -> None:
    """Refuse a tensor of another size than its pieces, so of more memory than bytes."""
    part, _, name = key.partition("/")
    pieces = sum(math.prod(chunk.sizes) for chunk in saved.chunks)
    starts = [start for chunk in saved.chunks for start in chunk.offsets]
    if not is_part(part) or not name or pieces != math.prod(saved.size):
        raise ValueError(f"the pieces of {key!r:.80} are not all of it")
    if any(type(start) is not int or start < 0 for start in starts):
        raise ValueError(f"a piece of {key!r:.80} lies outside")


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


class _Target(NamedTuple):
    """Where a rank writes: what the plan of rank 0 tells it."""

    rank: int
    directory: str


class _Writer(dcp.StorageWriter):
    """One file for each rank that has something, written as other files are."""

    def __init__(self, whole: Snapshot, root: Path, name: str) -> None:
        super().__init__()
        self._whole, self._root, self._name = whole, root, name
        self.draft = ExitStack()
        """Of rank 0, once there is something to clear away."""
        self._open: Draft | None = None

    def reset(self, checkpoint_id: Any = None) -> None:
        """It writes once."""

    def set_up_storage_writer(self, *_: Any, **__: Any) -> None:
        """Rank 0 does, when all are ready."""

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: Any) -> bool:
        return True

    def prepare_local_plan(self, plan: dcp.SavePlan) -> dcp.SavePlan:
        return plan

    def prepare_global_plan(self, plans: list[dcp.SavePlan]) -> list[dcp.SavePlan]:
        draft = Draft(self._root, self._name)
        self._open = self.draft.enter_context(draft)
        return [
            dataclasses.replace(plan, storage_data=_Target(rank, draft.directory.name))
            for rank, plan in enumerate(plans)
        ]

    def write_data(self, plan: dcp.SavePlan, planner: Any) -> Future[Any]:
        rank, directory = cast("_Target", plan.storage_data)
        folder = self._root / directory
        if not folder.is_dir():
            raise CheckpointError(
                f"rank {rank} does not see what rank 0 made in {str(self._root)!r}: "
                "write checkpoints where all processes see them"
            )
        entries = []
        items: list[Any] = list(plan.items)
        if items:
            tensors = {item.index.fqn: planner.resolve_data(item) for item in items}
            offsets = {
                item.index.fqn: {"saved_offsets": list(item.tensor_data.chunk.offsets)}
                for item in items
            }
            about = {"DCP_SHARDING_INFO": json.dumps(offsets), "DCP_VERSION": "1.0"}
            name = f"shard-{rank + 1:05d}-model-00001-of-00001.safetensors"
            entries = [write_one(folder / name, tensors, {**about, "format": "pt"})]
        done: Future[Any] = Future()
        done.set_result(entries)
        return done

    def finish(self, metadata: Any, results: list[list[Any]]) -> None:
        entries: list[FileEntry] = [entry for share in results for entry in share]
        cast("Draft", self._open).finish(self._whole, entries)


def _listing(paths: list[str]) -> Any:
    """A file system that sees, of a directory, the files of the shards."""
    from torch.distributed.checkpoint.filesystem import FileSystem

    files = FileSystem()
    vars(files)["ls"] = lambda path: paths
    return files


def _volume(item: Any) -> int:
    return math.prod(item.tensor_data.chunk.sizes)
