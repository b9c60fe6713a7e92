"""The child of `devrun compare --commits`: one side, trained from a commit's files."""

from __future__ import annotations

import argparse
import json
import os
import sys
import threading
from pathlib import Path
from queue import SimpleQueue
from typing import IO, Any

from devrun.cli.compare_side import side
from devrun.cli.exits import Session, guarded
from devrun.errors import ConfigError


def main() -> int:
    """Do the requests on stdin until it is closed; 0, or the status of an error."""
    requests: SimpleQueue[str] = SimpleQueue()
    threading.Thread(target=_read, args=(requests,), daemon=True).start()
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what the user's code prints is no answer
    about = json.loads(requests.get())
    os.chdir(about["cwd"])
    sys.path[:] = about["path"]
    _say(answers, "begun")
    return guarded(lambda session: _serve(about, requests, answers, session), [])


def _read(requests: SimpleQueue[str]) -> None:
    """Pass the lines of stdin on; when it ends, so does this process, at once.

    Not by `sys.stdin`, for whose lock an end in order would wait.
    """
    held = b""
    while more := os.read(0, 1 << 16):
        *lines, held = (held + more).split(b"\n")
        for line in lines:
            requests.put(line.decode())
    os._exit(0)


def _serve(
    about: dict[str, Any],
    requests: SimpleQueue[str],
    answers: IO[str],
    session: Session,
) -> int:
    session.parsed = True
    args = argparse.Namespace(**about["args"])
    if args.mmcv:
        from devrun.interop.mmcv_finder import install

        install()
    places = Path(about["root"]), Path(about["tree"]), about["label"]
    with side(args, about["config"], about["label"], args.device) as trained:
        while True:
            _check_modules(*places)  # before a long training, and what that imported
            _answer(json.loads(requests.get()), trained)
            _check_modules(*places)
            _say(answers, "done")


def _say(answers: IO[str], word: str) -> None:
    answers.write(f"{word}\n")
    answers.flush()


def _answer(request: dict[str, Any], trained: Any) -> None:
    from devrun.rehearsal.operators import write_operators
    from devrun.rehearsal.recording import write

    if request["what"] == "operators":
        told = request["step"], request["name"], request["rounding"]
        write_operators(trained.operators(*told), request["file"])
        return
    found = trained.record(request["steps"])
    if request["what"] == "measure":
        trained.measure(found, request["steps"])
    write(found, request["file"])


def _check_modules(root: Path, tree: Path, label: str) -> None:
    """Refuse what was compared if code of another state of the repository ran."""
    if root == tree:
        return
    for name, module in sorted(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if not isinstance(file, str) or name.partition(".")[0] == "devrun":
            continue
        place = Path(os.path.realpath(file))
        other = place.is_relative_to(root) and not place.is_relative_to(tree)
        if other and not place.is_relative_to(sys.prefix):
            raise ConfigError(
                f"the module {name} came from {place}, not from the commit {label}: "
                "commit the file, or take it out of where Python is told to look"
            )
