"""Two commits of the user's repository: each is trained in a process of its own.

A commit is written out into a temporary folder by way of an index of its own, so that
nothing in the repository changes, no branch, no list of work trees. A small process
removes the folder when this one has ended, however that was.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO, Any, cast

from devrun.errors import ConfigError, DevrunError
from devrun.rehearsal.compare import Side
from devrun.rehearsal.operators import Operator, read_operators
from devrun.rehearsal.recording import Recording, read
from devrun.text import one_line

WORKING_TREE = "."
"""In the place of a commit: the files as they are now. No branch can be called so."""
_KEEPER = 'cat; rm -rf -- "$1" || { sleep 1; rm -rf -- "$1"; }'


class Commit(Side):
    """The training of a config as it is at a commit, in a child process.

    Args:
        root: of the user's repository; `tree`: of its files at the commit.
        scratch: a folder for what the child hands back.
        command: of the child, which reads requests from its stdin, each a line of
            JSON, answers each with a line on its stdout, and ends when stdin closes.
        request: the first one, beside the places.
    """

    def __init__(
        self,
        label: str,
        root: Path,
        tree: Path,
        scratch: Path,
        command: Sequence[str],
        request: Mapping[str, Any],
    ) -> None:
        self.label = label
        self._root, self._tree = root, tree
        self._file = scratch / f"{tree.name}.answer"
        self._said = scratch / f"{tree.name}.stderr"
        with self._said.open("wb") as said:
            self._child = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=said,
                text=True,
                errors="replace",
            )
        here = self._inside(Path.cwd())
        while not here.is_dir():  # a folder that the commit does not have
            here = here.parent
        self._begin = {
            **request, "label": label, "root": str(root), "tree": str(tree),
            "cwd": str(here),
            "path": [str(self._inside(Path(p))) if p else p for p in sys.path],
        }  # fmt: skip

    def record(self, steps: int, rounding: float = 0.0, move: int = 0) -> Recording:
        self._ask(self._begin)
        self._ask({"what": "record", "steps": steps})
        return read(self._file)

    def measure(self, recording: Recording, steps: int) -> None:
        self._ask({"what": "measure", "steps": steps})
        recording.noise.update(read(self._file).noise)

    def operators(self, step: int, name: str, rounding: float = 0.0) -> list[Operator]:
        told = {"step": step, "name": name, "rounding": rounding}
        self._ask({"what": "operators", **told})
        return read_operators(self._file)

    def close(self) -> None:
        """End the child."""
        with suppress(BrokenPipeError):
            cast(IO[str], self._child.stdin).close()
        self._child.wait()
        cast(IO[str], self._child.stdout).close()

    def _ask(self, request: Mapping[str, Any]) -> None:
        """Have the child do something; what it found is in the file then.

        Raises:
            DevrunError: the child's, with its exit status.
        """
        with suppress(BrokenPipeError):
            requests = cast(IO[str], self._child.stdin)
            requests.write(json.dumps({"file": str(self._file), **request}) + "\n")
            requests.flush()
        if cast(IO[str], self._child.stdout).readline():
            return
        status = self._child.wait()
        lines = self._said.read_text(encoding="utf-8", errors="replace").splitlines()
        last = next((line for line in reversed(lines) if line.strip()), "")
        what = last.removeprefix("devrun: error: ") or f"its process ended: {status}"
        error = DevrunError(f"{self.label}: {what}")
        error.exit_code = status if status > 0 else 1
        raise error

    def _inside(self, path: Path) -> Path:
        """The place in the commit of one in the repository; another one as it is."""
        path = path.absolute()
        own = path.is_relative_to(self._root) and not path.is_relative_to(sys.prefix)
        return self._tree / path.relative_to(self._root) if own else path


@contextmanager
def commits(
    config: str, pair: tuple[str, str], command: list[str], request: Mapping[str, Any]
) -> Iterator[tuple[Commit, Commit]]:
    """Both sides; their folders are there until the context ends.

    Args:
        config: the path of the config, in the repository.
        pair: what git takes for a commit, or `WORKING_TREE`.

    Raises:
        ConfigError: no git, no repository, no such commit, or no such config in it.
    """
    place = Path(os.path.realpath(config))
    folder = next(p for p in place.parents if p.is_dir())
    root = Path(_git(folder, "rev-parse", "--show-toplevel").strip())
    relative = place.relative_to(root)
    hashes = [None if name == WORKING_TREE else _hash(root, name) for name in pair]
    for name, found in zip(pair, hashes, strict=True):
        _check_config(root, relative, name, found)
    with _scratch() as scratch, ExitStack() as children:
        sides = []
        for index, (name, found) in enumerate(zip(pair, hashes, strict=True)):
            tree = root if found is None else scratch / str(index)
            if found is not None:
                _write_out(root, found, tree)
            told = {**request, "config": str(tree / relative)}
            label = "the working tree" if found is None else name
            sides.append(Commit(label, root, tree, scratch, command, told))
            children.callback(sides[-1].close)
        yield sides[0], sides[1]


@contextmanager
def _scratch() -> Iterator[Path]:
    """A folder that is removed also when this process is killed."""
    scratch = tempfile.mkdtemp(prefix="devrun-commits-")
    keeper = subprocess.Popen(
        ["sh", "-c", _KEEPER, "sh", scratch],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        start_new_session=True,  # Ctrl-C is not for it
    )
    try:
        yield Path(os.path.realpath(scratch))
    finally:
        keeper.communicate()


def _hash(root: Path, name: str) -> str:
    try:
        if name.startswith("-"):
            raise ConfigError("")
        words = "rev-parse", "--verify", "--quiet", f"{name}^{{commit}}"
        return _git(root, *words).strip()
    except ConfigError:
        raise ConfigError(
            f"--commits: {str(root)!r} has no commit {name!r}; give a hash, a branch "
            f"or a tag, or {WORKING_TREE!r} for the files as they are"
        ) from None


def _check_config(root: Path, relative: Path, name: str, found: str | None) -> None:
    if found is None:
        there = (root / relative).is_file()
    else:
        words = "ls-tree", "--name-only", "-z", found, "--", str(relative)
        there = bool(_git(root, *words))
    if not there:
        what = "the working tree" if found is None else f"commit {name!r}"
        raise ConfigError(
            f"--commits: {what} has no {str(relative)!r}; both need the config"
        )


def _write_out(root: Path, commit: str, tree: Path) -> None:
    """The files of `commit`, and links to those that the repository does not keep."""
    index = {"GIT_INDEX_FILE": f"{tree}.index"}
    _git(root, "read-tree", commit, **index)
    _git(root, "checkout-index", "--all", "--quiet", f"--prefix={tree}/", **index)
    tree.mkdir(exist_ok=True)
    others = _git(root, "ls-files", "--others", "--directory", "-z").split("\0")
    for name in filter(None, others):  # data sets, mostly
        place = tree / name.rstrip("/")
        if not os.path.lexists(place) and place.parent.is_dir():
            place.symlink_to(root / name.rstrip("/"))


def _git(folder: Path, *words: str, **variables: str) -> str:
    if shutil.which("git") is None:
        raise ConfigError("--commits needs git, which is not installed here")
    kept = {k: v for k, v in os.environ.items() if not k.startswith("GIT_")}
    done = subprocess.run(
        ["git", *words],
        cwd=folder,
        env={**kept, **variables},
        capture_output=True,
        text=True,
        errors="surrogateescape",
        check=False,
    )
    if done.returncode:
        raise ConfigError(f"--commits: git in {str(folder)!r}: {one_line(done.stderr)}")
    return done.stdout
