"""The executable cache, rehearsed: which compilations a real cache would have saved.

A capture is cheap and always made; what is kept is the mark that it was made before, so
that a program can count on its second run what is found. See `emulation.counts`.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

from poptorch import _machine
from poptorch._compile import Executable
from poptorch._logging import logger


def look_up(graph: Executable, options: Any, training: bool) -> None:
    """Count whether the cache of `options` knows the executable, and add it if not."""
    popart = options._popart.options
    folder = popart.get("cachePath")
    if not folder or not popart.get("enableEngineCaching"):
        return
    path = Path(folder) / f"{_key(graph, options, training)}.emulated"
    if path.exists():
        _machine.counts["cache_hit"] += 1
        logger.debug("The executable is in the cache: %s", path)
        return
    _machine.counts["cache_miss"] += 1
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(f".{os.getpid()}")
    partial.write_text("no executable: the mark of one that was emulated\n")
    partial.replace(path)


def _key(graph: Executable, options: Any, training: bool) -> str:
    """A digest of everything that the compiler would see but the weights."""
    settings = {k: v for k, v in options.toDict().items() if k != "cachePath"}
    inputs = [(tuple(t.shape), str(t.dtype)) for t in graph.signature.tensors()]
    nodes = [(n.name, n.reads, n.writes, n.bytes, n.ipu) for n in graph.tape.nodes]
    parts = (sorted(map(str, settings.items())), inputs, nodes, training, graph.loss)
    return hashlib.sha256(repr(parts).encode()).hexdigest()
