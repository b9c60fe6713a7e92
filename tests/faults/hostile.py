"""Checkpoints and `.pth` files made to do harm; each is a function of a directory.

They are given a good checkpoint and change it. `resigned` writes a manifest that is
right about the changed files, as whoever means harm would.
"""

import hashlib
import json
import os
import pickle
import socket
import sys
import zipfile
from dataclasses import replace
from pathlib import Path

import torch

from devrun.checkpoint.manifest import FileEntry, Manifest, _sealed

BOMB = 400 << 20
CORPUS = {}


class Evil:
    """Unpickling it makes the file `ran`."""

    def __init__(self, place):
        self.command = f"touch {place}/ran"

    def __reduce__(self):
        return os.system, (self.command,)


def corpus(function):
    CORPUS[function.__name__] = function
    return function


def variants(name, values):
    """The decorated function, once with each value."""

    def add(function):
        for number, value in enumerate(values):
            CORPUS[f"{name} {number}"] = lambda path, v=value: function(path, v)
        return function

    return add


def resigned(path, *more):
    """A manifest for what is in `path` now, and for entries that are not."""
    manifest = Manifest.parse((path / "MANIFEST.json").read_bytes())
    entries = [*more]
    for file in sorted(path.iterdir()):
        if file.name != "MANIFEST.json" and file.is_file() and not file.is_symlink():
            data = file.read_bytes()
            sha = hashlib.sha256(data).hexdigest()
            entries.append(FileEntry(file.name, len(data), sha))
    text = replace(manifest, files=tuple(entries)).render()
    (path / "MANIFEST.json").write_bytes(text)


FILES = [
    "model.json", "model.safetensors", "optimizer.json", "optimizer.safetensors",
    "trainer.json", "hooks.json", "hooks.safetensors", "rng-rank00000.json",
    "adapter.json",
]  # fmt: skip


@variants("pickle instead of a file", FILES)
def _(path, name):
    (path / name).write_bytes(pickle.dumps(Evil(path.parent)))
    resigned(path)


@variants("pth instead of a file", FILES)
def _(path, name):
    torch.save({"w": Evil(path.parent)}, path / name)
    resigned(path)


@corpus
def pickle_instead_of_the_manifest(path):
    (path / "MANIFEST.json").write_bytes(pickle.dumps(Evil(path.parent)))


@corpus
def metadata_of_another_format(path):
    (path / ".metadata").write_bytes(pickle.dumps(Evil(path.parent)))
    resigned(path)


NAMES = [
    "../outside.json", "/etc/hostname", "a/b.json", "a\0b.json", "a\nb.json", "..",
    ".", "", "x" * 10_000, "MANIFEST.json", "Upper.json", "\u202egnp.json",
    "~/x.json", "$HOME.json", "con\\x.json",
]  # fmt: skip


@variants("name", NAMES)
def _(path, name):
    resigned(path, FileEntry(name, 0, hashlib.sha256(b"").hexdigest()))


@variants("no regular file", ["symlink", "fifo", "socket", "device", "directory"])
def _(path, kind):
    target = path / "trainer.json"
    data = target.read_bytes()
    entry = FileEntry("trainer.json", len(data), hashlib.sha256(data).hexdigest())
    target.unlink()
    if kind == "symlink":
        (path.parent / "elsewhere.json").write_bytes(data)
        target.symlink_to(path.parent / "elsewhere.json")
    elif kind == "fifo":
        os.mkfifo(target)
    elif kind == "socket":
        before = os.getcwd()
        os.chdir(path)  # the name of a socket is short
        with socket.socket(socket.AF_UNIX) as server:
            server.bind("trainer.json")
        os.chdir(before)
    elif kind == "device" and os.geteuid() == 0:
        os.mknod(target, 0o20666, os.makedev(1, 5))  # /dev/zero
    else:
        target.mkdir()
    resigned(path, entry)


@variants("manifest no regular file", ["symlink", "fifo"])
def _(path, kind):
    target = path / "MANIFEST.json"
    data = target.read_bytes()
    target.unlink()
    if kind == "fifo":
        os.mkfifo(target)
    else:
        (path.parent / "MANIFEST.json").write_bytes(data)
        target.symlink_to(path.parent / "MANIFEST.json")


def header_of(entries, data=b"", length=None):
    text = json.dumps(entries).encode() if not isinstance(entries, bytes) else entries
    return (len(text) if length is None else length).to_bytes(8, "little") + text + data


def tensor(shape, start, end, dtype="F32"):
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}


HEADERS = [
    header_of({}, length=2**60),
    header_of({}, length=2**63 + 5),
    header_of({"w": tensor([4], 0, 2**60)}, bytes(16)),
    header_of({"w": tensor([2**40], 0, 2**42)}, bytes(16)),
    header_of({"w": tensor([4], 0, 16), "v": tensor([4], 8, 24)}, bytes(24)),
    header_of({"w": tensor([4], -8, 8)}, bytes(16)),
    header_of({"w": tensor([4], 16, 0)}, bytes(16)),
    header_of({"w": tensor([-1, -4], 0, 16)}, bytes(16)),
    header_of({"w": tensor([4], 0, 16, "PICKLE")}, bytes(16)),
    header_of(b'{"w":' * 50_000 + b"}" * 50_000),
    header_of(b'{"w":1,"w":2}'),
    header_of(b"\xff\xfe{}"),
    b"",
    b"\0" * 7,
]


@variants("tensor file", HEADERS)
def _(path, data):
    (path / "model.safetensors").write_bytes(data)
    resigned(path)


TREES = [
    b"[" * 100_000 + b"]" * 100_000,
    b'{"a":1,"a":2}',
    b'{"a":NaN}',
    b'{"a":1e999}',
    b'{"a":' + b"9" * 1_000_000 + b"}",
    b'{"$int":"0x' + b"f" * 4_000_000 + b'"}',
    b'{"$int":"rm -rf"}',
    b'{"$float":"os.system"}',
    b'{"$array":{"dtype":"O","shape":[1],"data":"x"}}',
    b'{"$array":{"dtype":"<f4","shape":[1000000000000],"data":"x"}}',
    b'{"$array":{"dtype":"<f4,(1000000000,)f4","shape":[1],"data":"x"}}',
    b'{"$scalar":{"dtype":"O8","data":"AAAAAAAAAAA="}}',
    b'{"$scalar":{"dtype":"<U999999999","data":""}}',
    b'{"$size":["x"]}',
    b'{"$deque":[[],99999999999999999999]}',
    b'{"$deque":[[],-1]}',
    b'{"$tensor":"no such tensor"}',
    b'{"$tensor":"0.weight","stride":[99999999,1]}',
    b'{"$tensor":"0.weight","dtype":"complex64","shape":[99999999]}',
    b'{"$tensor":"0.weight","dtype":"__class__","shape":[1]}',
    b'{"$tensor":["0.weight"]}',
    b'{"$object":"os.system","args":["id"]}',
    b'{"$dict":[[{"$dict":[]},1]]}',
    b'{"$set":[[1]]}',
    b'{"$odict":[],"metadata":{"$int":"1"},"x":1}',
    b'{"py/object":"os.system"}',
    b"__import__('os').system('id')",
    b"\xff\xfe\x00",
    b"",
    b"null",
    b"[1]",
    b"-0.5",
    b'"text"',
    b"true",
]


PLAIN = (b"py/obj", b'"a":1', b"NaN", b"1e999")
if not hasattr(sys, "set_int_max_str_digits"):  # nor a limit, as 3.9.2 of Debian
    TREES = [tree for tree in TREES if b"9" * 10**5 not in tree]
PLAIN_DATA = {f"tree {TREES.index(t)}" for t in TREES if any(p in t for p in PLAIN)}
"""Read as what it is, a dict, which then does not fit the model."""


@variants("no dict", [name for name in FILES if name.endswith(".json")])
def _(path, name):
    (path / name).write_bytes(b"null")
    resigned(path)


@variants("tree", TREES)
def _(path, data):
    (path / "model.json").write_bytes(data)
    resigned(path)


def manifest_with(path, **fields):
    record = json.loads((path / "MANIFEST.json").read_text())
    record.update(fields)
    record.pop("self_sha256", None)
    (path / "MANIFEST.json").write_bytes(_sealed(record))


MANIFESTS = [
    {"schema": 10**9}, {"schema": -1}, {"schema": True}, {"schema": "1"},
    {"step": -1}, {"step": 10**400}, {"step": 1.5},
    {"files": {}}, {"files": [[]]}, {"files": "model.json"},
    {"format": "os.system"}, {"meta": {"$array": 1}}, {"environment": []},
    {"run_id": ["x"]}, {"writer": None},
]  # fmt: skip


@variants("manifest", MANIFESTS)
def _(path, fields):
    manifest_with(path, **fields)


@corpus
def manifest_with_a_key_twice(path):
    text = (path / "MANIFEST.json").read_bytes()
    (path / "MANIFEST.json").write_bytes(text.replace(b"{", b'{"step": 1,', 1))


@corpus
def manifest_of_17_megabytes(path):
    (path / "MANIFEST.json").write_bytes(b" " * (17 << 20))


@corpus
def sparse_file_of_a_terabyte(path):
    os.truncate(path / "model.safetensors", 1 << 40)


PTH = {}


def pth(function):
    PTH[function.__name__] = function
    return function


@pth
def evil_pickle(path):
    path.write_bytes(pickle.dumps({"state_dict": Evil(path.parent)}))


@pth
def evil_zip(path):
    torch.save({"state_dict": Evil(path.parent)}, path)


@pth
def evil_in_meta(path):
    torch.save({"state_dict": {}, "meta": {"hook": Evil(path.parent)}}, path)


@pth
def evil_old_format(path):
    torch.save(Evil(path.parent), path, _use_new_zipfile_serialization=False)


@pth
def import_by_name(path):
    pickled = b"\x80\x02cos\nsystem\nX\x04\x00\x00\x00id; \x85R."
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/data.pkl", pickled)
        archive.writestr("archive/version", "3\n")


@pth
def bomb(path):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/version", "3\n")
        with archive.open("archive/data.pkl", "w", force_zip64=True) as file:
            for _ in range(BOMB >> 20):
                file.write(bytes(1 << 20))


@pth
def climbing_archive(path):
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("../../ran", "x")


@pth
def tar_archive(path):
    import io
    import tarfile

    with tarfile.open(path, "w") as archive:
        data = pickle.dumps(Evil(path.parent))
        for name in ("storages", "tensors", "pickle", "sys_info"):
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))


@pth
def nothing(path):
    path.write_bytes(b"")


@pth
def noise(path):
    path.write_bytes(b"\x80\x05" + bytes(range(256)) * 4)


@pth
def fifo(path):
    os.mkfifo(path)


@pth
def a_directory(path):
    Path(path).mkdir()
