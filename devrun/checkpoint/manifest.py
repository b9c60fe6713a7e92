"""MANIFEST.json: what a checkpoint consists of, written last and checked first.

Its own hash covers everything in it, and its bytes must be exactly what `render`
gives for its values: no bit of it can change unnoticed.
"""

from __future__ import annotations

import datetime
import hashlib
import json
import platform
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from devrun import __version__
from devrun.checkpoint.codec import decode_tree, encode_tree
from devrun.checkpoint.names import FILE, MANIFEST, is_of_pieces, is_part
from devrun.errors import CheckpointError
from devrun.files import parse_json
from devrun.text import escape
from devrun.torch_features import cpu_capability

SCHEMA = 4
MAX_MANIFEST = 1 << 24
_HASH = "self_sha256"
_FORMAT = "devrun checkpoint"
_KINDS: dict[str, tuple[type, ...]] = {
    "created": (str,),
    "environment": (dict,),
    "files": (list,),
    "meta": (dict,),
    "run_id": (str, type(None)),
    "step": (int,),
    "writer": (str,),
}


@dataclass(frozen=True)
class FileEntry:
    """One file: plain name, size in bytes, sha256 in hex."""

    name: str
    size: int
    sha256: str

    @property
    def part(self) -> str | None:
        """The part whose JSON or tensors it holds; None for the files of shards."""
        name, _, ending = self.name.rpartition(".")
        own = ending in ("json", "safetensors") and is_part(name)
        return name if own and not is_of_pieces(self.name) else None

    def read(self, read: Callable[[Path, int], Any], folder: Path) -> Any:
        """What `read` gives for it in `folder`.

        Raises:
            CheckpointError: it cannot be read, or has another size.
        """
        try:
            return read(folder / self.name, self.size)
        except OSError as error:
            reason = error.strerror or str(error)
            raise CheckpointError(f"{self.name} cannot be read: {reason}") from error

    def check(self, sha256: str) -> None:
        """Refuse bytes with another hash."""
        if sha256 != self.sha256:
            raise CheckpointError(f"{self.name} is damaged: its sha256 does not match")


@dataclass(frozen=True)
class Manifest:
    """The facts about one checkpoint; `meta` is whatever the caller added."""

    step: int
    files: tuple[FileEntry, ...]
    run_id: str | None = None
    environment: Mapping[str, Any] = field(default_factory=dict)
    meta: Mapping[str, Any] = field(default_factory=dict)
    created: str = ""
    writer: str = ""

    @property
    def pieces(self) -> list[FileEntry]:
        """The files with tensors that each process wrote its piece of."""
        return [entry for entry in self.files if is_of_pieces(entry.name)]

    @property
    def parts(self) -> list[str]:
        """Names of the parts, in order."""
        found = dict.fromkeys(entry.part for entry in self.files)
        return [part for part in found if part is not None]

    @classmethod
    def describe(cls, meta: Mapping[str, Any]) -> Manifest:
        """A manifest without files, from the `meta` of `write_checkpoint`.

        Raises:
            CheckpointError: a value that JSON cannot hold.
        """
        rest = dict(meta)
        step, run_id = rest.pop("step"), rest.pop("run_id", None)
        own = {key: rest.pop(key, None) for key in ("device", "emulated")}
        return cls(
            step=step,
            files=(),
            run_id=run_id,
            environment=_encoded({**environment(), **own}, "environment"),
            meta=_encoded(rest, "meta"),
            created=datetime.datetime.now(datetime.timezone.utc).isoformat(),
            writer=f"devrun {__version__}",
        )

    def render(self) -> bytes:
        """The bytes of MANIFEST.json."""
        record = {**asdict(self), "format": _FORMAT, "schema": SCHEMA}
        return _sealed(record)

    @classmethod
    def parse(cls, data: bytes) -> Manifest:
        """The manifest in `data`.

        Raises:
            CheckpointError: damaged, or of a version that is not known.
        """
        try:
            record = parse_json(data)
            if not isinstance(record, dict) or record.get("format") != _FORMAT:
                raise CheckpointError(f"{MANIFEST} is not one of a devrun checkpoint")
            if record.get("schema") != SCHEMA:
                raise CheckpointError(
                    f"written by {record.get('writer')!r:.80} in format "
                    f"{record.get('schema')!r:.20}, this devrun reads format {SCHEMA}; "
                    "use the one that wrote it"
                )
            record.pop(_HASH, None)
            if _sealed(record) != data:
                raise CheckpointError(
                    f"{MANIFEST} is damaged: its own hash does not match"
                )
            for key, kind in _KINDS.items():
                if type(record[key]) not in kind:
                    raise TypeError(f"field {key!r}")
            if not 0 <= record["step"] < 1 << 63:
                raise ValueError("field 'step'")
            return cls(
                step=record["step"],
                files=tuple(map(_entry, record["files"])),
                run_id=record["run_id"],
                environment=decode_tree(record["environment"], {}, "environment"),
                meta=decode_tree(record["meta"], {}, "meta"),
                created=record["created"],
                writer=record["writer"],
            )
        except (LookupError, TypeError, ValueError) as error:
            raise CheckpointError(f"{MANIFEST} is damaged: {escape(error)}") from error


def _sealed(record: Mapping[str, Any]) -> bytes:
    digest = hashlib.sha256(_rendered(record)).hexdigest()
    return _rendered({**record, _HASH: digest})


def _rendered(record: Mapping[str, Any]) -> bytes:
    """For people: indented, keys sorted."""
    text = json.dumps(record, allow_nan=False, sort_keys=True, indent=1)
    return text.encode() + b"\n"


def _entry(facts: Any) -> FileEntry:
    entry = FileEntry(**facts)
    plain = isinstance(entry.name, str) and FILE.fullmatch(entry.name)
    if not plain or (entry.part is None and not is_of_pieces(entry.name)):
        raise CheckpointError(f"{MANIFEST} names a file {entry.name!r:.80}: refused")
    if type(entry.size) is not int or entry.size < 0:
        raise ValueError(f"the size of {entry.name}")
    return entry


def _encoded(tree: Any, name: str) -> dict[str, Any]:
    encoded = encode_tree(tree, name)
    if encoded.tensors:
        first = next(iter(encoded.tensors))
        raise CheckpointError(f"{name} holds a tensor ({first}); make it a part")
    if not isinstance(encoded.tree, dict):
        raise CheckpointError(f"{name} must be a dict with string keys")
    return encoded.tree


def environment() -> dict[str, Any]:
    """The software and the processor that results depend on."""
    return {
        "torch": str(torch.__version__),
        "python": platform.python_version(),
        "platform": f"{sys.platform}-{platform.machine()}",
        "threads": torch.get_num_threads(),
        "cpu_capability": cpu_capability(),
    }
