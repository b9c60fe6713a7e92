"""The log of what was mapped: each call once for each line that makes it."""

from __future__ import annotations

import linecache
import os
import sys
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from types import FrameType
from typing import Any

import torch

MATCH, MODIFIED, MISMATCH = "hpu_match", "hpu_modified", "hpu_mismatch"
LEVEL = os.environ.get("GPU_MIGRATION_LOG_LEVEL", "")
_HERE = os.path.dirname(os.path.abspath(__file__))
_TORCH = os.path.dirname(os.path.abspath(torch.__file__))
_logged: set[tuple[str, int, str]] = set()


def log(
    kind: str, name: str, args: Sequence[Any], kwargs: Mapping[str, Any], to: str
) -> None:
    """Write that `name` became `to`, unless that was said of this line before."""
    if not LEVEL:
        return
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(_HERE):
        frame = frame.f_back
    if frame is None:
        return
    file, line = frame.f_code.co_filename, frame.f_lineno
    if (file, line, name) in _logged or (LEVEL == "3" and file.startswith(_TORCH)):
        return
    _logged.add((file, line, name))
    given = [_short(a) for a in args] + [f"{k}={_short(v)}" for k, v in kwargs.items()]
    now = datetime.now().strftime("%Y-%m-%d %H:%M:%S")
    text = (
        f"[{now}] {file}:{line}\n"
        f"    [context]: {linecache.getline(file, line).rstrip()}\n"
        f"    [{kind}]: {name}({', '.join(given)}) --> {to}\n\n"
    )
    with open(_file(), "a", encoding="utf-8") as out:
        out.write(text)
    if LEVEL == "1":
        sys.stdout.write(text)


def _file() -> Path:
    logs = os.environ.get("HABANA_LOGS", os.path.expanduser("~/.habana_logs"))
    folder = Path(logs) / "gpu_migration_logs"
    folder.mkdir(parents=True, exist_ok=True)
    return folder / f"gpu_migration_{os.getpid()}.log"


def _short(value: Any) -> str:
    if isinstance(value, (torch.Tensor, torch.nn.Module)):
        return type(value).__name__
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
