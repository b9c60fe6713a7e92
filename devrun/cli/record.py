"""`run.json`: what ran, with what, and how it ended; and the same as log lines."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import devrun
from devrun.files import replace_text
from devrun.log.jsonlines import strict_line


class RunRecord:
    """The facts of one run, written whole each time so that a kill leaves no half.

    Args:
        path: `work_dir/run.json`, or None to write nothing.
        facts: known before the run starts.
    """

    def __init__(self, path: Path | None, facts: Mapping[str, Any]) -> None:
        self._path = path
        self._began = time.monotonic()
        self.facts: dict[str, Any] = {
            "status": "running",
            "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
            **facts,
        }

    def write(self, **facts: Any) -> None:
        """Add `facts` and write the file."""
        self.facts.update(facts)
        if self._path is not None:
            write_facts(self._path, self.facts)

    def finish(self, status: str, exit_code: int, **facts: Any) -> None:
        """Write how the run ended and how long it took."""
        self.write(
            status=status,
            exit_code=exit_code,
            ended=time.strftime("%Y-%m-%dT%H:%M:%S%z"),
            duration_seconds=round(time.monotonic() - self._began, 3),
            **facts,
        )

    def fail(self, exit_code: int, message: str) -> None:
        """`finish` for a run that an error or a signal ended."""
        stopped = exit_code in (75, 130, 143)
        self.finish("interrupted" if stopped else "failed", exit_code, error=message)


def write_facts(path: Path, facts: Mapping[str, Any], *, follow: bool = False) -> None:
    """Write a `run.json` whole: a reader finds the one before or this."""
    strict = json.loads(strict_line(facts))
    replace_text(path, json.dumps(strict, indent=2) + "\n", follow=follow)


def versions() -> dict[str, str]:
    """Python, torch and devrun; imports torch."""
    import torch

    return {
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "devrun": devrun.__version__,
    }


def git_revision(folder: str | Path = ".") -> str | None:
    """Commit of the working tree around `folder`, `-dirty` when changed.

    The repository may be anybody's, and git runs programs that a repository's own
    settings name: a file monitor, filters, hooks. So the working tree is compared from
    a git directory without settings, made for the purpose, which borrows the objects
    and the index of the repository.
    """
    asked = ("HEAD", "--show-toplevel", "--git-path", "objects", "--git-path", "index")
    found = _git(folder, "rev-parse", *asked)
    if found is None:
        return None
    revision, top, *paths = found.splitlines()
    objects, index = (str(Path(folder, path).absolute()) for path in paths)
    with tempfile.TemporaryDirectory(prefix="devrun-") as bare:
        Path(bare, "HEAD").write_text(f"{revision}\n", "utf-8")
        Path(bare, "refs").mkdir()
        borrowed = {
            "GIT_CONFIG_GLOBAL": os.devnull,
            "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_DIR": bare,
            "GIT_WORK_TREE": top,
            "GIT_OBJECT_DIRECTORY": objects,
            "GIT_INDEX_FILE": index,
        }
        words = ("status", "--porcelain", "--untracked-files=no")
        changed = _git(top, *words, "--ignore-submodules=all", **borrowed)
    return f"{revision}-dirty" if changed else revision


def _git(folder: str | Path, *words: str, **variables: str) -> str | None:
    """What git prints; None where it fails. It writes nothing and asks nobody."""
    alone = {
        "GIT_OPTIONAL_LOCKS": "0",
        "GIT_ALLOW_PROTOCOL": "none",
        "GIT_TERMINAL_PROMPT": "0",
    }
    try:
        done = subprocess.run(
            ["git", "--no-pager", *words],
            cwd=folder,
            env={**os.environ, **alone, **variables},
            capture_output=True,
            text=True,
            timeout=5,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired, UnicodeDecodeError):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
