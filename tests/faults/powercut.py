"""Power cuts without cutting power: a disk that keeps only what was synced.

`Recorder` writes down what this process does to files below a directory. `states`
gives the directories that a cut may leave after so many of these operations. The disk
is as forgetful as POSIX allows: the content of a file is there once it was synced, a
name once its directory was, in every combination, and each directory keeps its own
order only. A rename is atomic, between two directories as well.
"""

import itertools
import os
import sys
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.strict import zip_strict

RECORDED = ("mkdir", "open", "write", "fsync", "rename", "unlink", "rmdir", "close")


class Recorder:
    """The operations on files below `root`, in order, as (kind, arguments)."""

    def __init__(self, root):
        self.root = str(Path(root).absolute())
        self.log = []
        self._open_files = {}  # descriptor -> identity
        self._identities = {}  # inode number, until it is used again -> identity
        self._next = itertools.count(1)

    @contextmanager
    def recording(self):
        """Within this block `os` writes down what it does."""
        before = {name: getattr(os, name) for name in RECORDED}
        for name in RECORDED:
            setattr(os, name, self._wrapped(name, before[name]))
        try:
            yield self
        finally:
            for name, function in before.items():
                setattr(os, name, function)

    def mark(self, step):
        """The checkpoint of `step` was acknowledged here."""
        self.log.append(("acknowledged", step))

    def _wrapped(self, name, function):
        note = getattr(self, f"_{name}")

        def call(*args, **options):
            if name in ("close", "rename"):  # afterwards it is too late to ask
                known = note(*args, **options)
                result = function(*args, **options)
                if known is not None:
                    self.log.append(known)
                return result
            result = function(*args, **options)
            note(*args, result=result, **options)
            return result

        return call

    def _path(self, path, dir_fd=None):
        if dir_fd is not None:
            path = os.path.join(os.readlink(f"/proc/self/fd/{dir_fd}"), path)
        path = os.path.abspath(path)
        inside = path == self.root or path.startswith(self.root + os.sep)
        return os.path.relpath(path, self.root) if inside else None

    def _open(self, path, flags, mode=0o777, *, dir_fd=None, result):
        name = self._path(path, dir_fd)
        if name is None:
            return
        if flags & os.O_CREAT and os.fstat(result).st_size == 0:
            self.log.append(("create", name, self._new(os.fstat(result))))
        self._open_files[result] = self._identity(os.fstat(result))

    def _close(self, fd):
        self._open_files.pop(fd, None)

    def _write(self, fd, data, *, result):
        if fd in self._open_files:
            content = bytes(memoryview(data).cast("B")[:result])
            self.log.append(("write", self._open_files[fd], content))

    def _fsync(self, fd, *, result):
        if fd in self._open_files:
            self.log.append(("fsync", self._open_files[fd], _caller()))

    def _mkdir(self, path, mode=0o777, *, dir_fd=None, result):
        name = self._path(path, dir_fd)
        if name is not None:
            status = os.stat(os.path.join(self.root, name))
            self.log.append(("mkdir", name, self._new(status)))

    def _rename(self, old, new, *, src_dir_fd=None, dst_dir_fd=None):
        names = self._path(old, src_dir_fd), self._path(new, dst_dir_fd)
        return None if None in names else ("rename", *names)

    def _unlink(self, path, *, dir_fd=None, result):
        name = self._path(path, dir_fd)
        if name is not None:
            self.log.append(("remove", name))

    _rmdir = _unlink

    def _new(self, status):
        self._identities[status.st_ino] = next(self._next)
        return self._identities[status.st_ino]

    def _identity(self, status):
        return self._identities.get(status.st_ino, "root")


def _caller():
    """`file:line` of the checkpoint code that asked for an fsync."""
    frame = sys._getframe()
    while frame is not None:
        file = Path(frame.f_code.co_filename)
        if file.parent.name == "checkpoint" and file.name != "fileops.py":
            return f"{file.name}:{frame.f_lineno}"
        frame = frame.f_back
    return "?"


@dataclass
class File:
    """What was written, and how much of it is on the disk for certain."""

    content: bytes = b""
    durable: bytes = b""

    def versions(self):
        """What a cut may leave of it."""
        if self.content == self.durable:
            return [self.durable]
        half = self.content[: (len(self.durable) + len(self.content)) // 2]
        return [self.durable, half, b"\0" * len(self.content), self.content]


@dataclass
class Directory:
    """Entries (name -> inode) on the disk, and changes that are not there yet."""

    durable: dict = field(default_factory=dict)
    pending: list = field(default_factory=list)

    def after(self, count):
        entries = dict(self.durable)
        for _, change in self.pending[:count]:
            for name, inode in change:
                entries.pop(name, None)
                if inode is not None:
                    entries[name] = inode
        return entries


class Disk:
    """Replays a log; `states` are what a cut may leave now."""

    def __init__(self):
        self.inodes = {"root": Directory()}
        self._numbers = itertools.count()

    def apply(self, operation):
        kind, *rest = operation
        getattr(self, f"_{kind}")(*rest)

    def states(self):
        """Trees (path -> content, None for a directory) that a cut may leave.

        Of each directory that has a name a beginning of its changes, of each file
        a version.
        """
        directories = [d for d in self.inodes.values() if isinstance(d, Directory)]
        unsettled = [d for d in directories if d.pending]
        choices = [range(len(d.pending) + 1) for d in unsettled]
        for counts in itertools.product(*choices):
            pairs = list(zip_strict(unsettled, counts))
            there = {n for d, count in pairs for n, _ in d.pending[:count]}
            if there.isdisjoint(n for d, count in pairs for n, _ in d.pending[count:]):
                yield from self._trees({id(d): count for d, count in pairs})

    def _trees(self, chosen):
        files = {}
        tree = {}

        def walk(inode, path):
            directory = self.inodes[inode]
            for name, child in directory.after(chosen.get(id(directory), 0)).items():
                here = f"{path}/{name}" if path else name
                if isinstance(self.inodes[child], Directory):
                    tree[here] = None
                    walk(child, here)
                else:
                    files[here] = self.inodes[child].versions()

        walk("root", "")
        unsure = [name for name, versions in files.items() if len(versions) > 1]
        tree.update({n: v[0] for n, v in files.items() if len(v) == 1})
        # one file at a time is damaged: more at once show nothing new
        yield {**tree, **{name: files[name][-1] for name in unsure}}
        for name in unsure:
            for version in files[name][:-1]:
                rest = {other: files[other][-1] for other in unsure}
                yield {**tree, **rest, name: version}

    def _find(self, path):
        inode = "root"
        for name in Path(path).parts:
            entries = self.inodes[inode]
            inode = entries.after(len(entries.pending))[name]
        return inode

    def _parent(self, path):
        return self.inodes[self._find(os.path.dirname(path))]

    def _change(self, path, inode):
        change = next(self._numbers), [(os.path.basename(path), inode)]
        self._parent(path).pending.append(change)

    def _mkdir(self, path, inode):
        self.inodes[inode] = Directory()
        self._change(path, inode)

    def _create(self, path, inode):
        self.inodes[inode] = File()
        self._change(path, inode)

    def _write(self, inode, data):
        self.inodes[inode].content += data

    def _fsync(self, inode, caller):
        known = self.inodes[inode]
        if isinstance(known, File):
            known.durable = known.content
        else:
            self._settle(known, len(known.pending))

    def _settle(self, directory, count):
        """The first changes are on the disk; of a rename, on both sides."""
        settled = {number for number, _ in directory.pending[:count]}
        directory.durable = directory.after(count)
        del directory.pending[:count]
        for other in self.inodes.values():
            if isinstance(other, Directory):
                shared = [i for i, (n, _) in enumerate(other.pending) if n in settled]
                if shared:
                    self._settle(other, shared[-1] + 1)

    def _rename(self, old, new):
        inode, source, target = self._find(old), self._parent(old), self._parent(new)
        gone, come = (os.path.basename(old), None), (os.path.basename(new), inode)
        number = next(self._numbers)
        if source is target:
            source.pending.append((number, [gone, come]))
        else:
            target.pending.append((number, [come]))
            source.pending.append((number, [gone]))

    def _remove(self, path):
        self._change(path, None)

    def _acknowledged(self, step):
        """A mark; nothing happens on the disk."""


def materialise(tree, place):
    """Write a tree to the real directory `place`."""
    place.mkdir(parents=True)
    for name in sorted(tree):
        content = tree[name]
        if content is None:
            (place / name).mkdir(parents=True, exist_ok=True)
        else:
            (place / name).parent.mkdir(parents=True, exist_ok=True)
            (place / name).write_bytes(content)
    return place
