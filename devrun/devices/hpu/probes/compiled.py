"""What the compiler of a Gaudi is given, and the mode that it needs."""

from __future__ import annotations

import ast
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import nn

from devrun.probes import sites
from devrun.probes.finding import Finding
from devrun.probes.kinds import imported_by
from devrun.probes.notebook import Notebook
from devrun.torch_features import as_compiled, uncompiled

_MODE, _SDK = "PT_HPU_LAZY_MODE", "habana_frameworks"
_BACKEND = "hpu_"
_OPERATOR = "TorchRuntimeError"
"""Of an operator that would raise without a compiler too."""
_EARLIER = f'os.environ["{_MODE}"] = "0" above the first import of {_SDK}'
_LATE = "it is read once, when the SDK is imported, which was before: nothing changes"
_LAZY = "in lazy mode, the SDK's up to 1.21 where nothing is set, it raises"


def or_uncompiled(step: Callable[..., Any], past: str = "") -> Callable[..., Any]:
    """`step` without modes of a rehearsal, which a compiler would trace; or, where
    these are needed, as it is written.

    Args:
        past: the compiler's error that is got past so too.
    """

    def stepped(*args: Any, **kwargs: Any) -> Any:
        try:
            with torch._C.DisableTorchFunction(), as_compiled():
                return step(*args, **kwargs)
        except Exception as error:
            kind = type(error)
            # as what a mode puts in the place of a call that names CUDA
            of_cuda = kind.__name__ == _OPERATOR and "cuda" in str(error)
            known = of_cuda or kind.__name__ == past
            if kind.__module__ == "torch._dynamo.exc" and not known:
                raise  # of what cannot be compiled by anybody
        with uncompiled():
            return step(*args, **kwargs)

    return stepped


def set_mode(note: Notebook, script: str) -> None:
    """Set the mode that a program sets before it imports the SDK; note one that is
    set later."""
    imported = False
    for one in ast.parse(Path(script).read_bytes()).body:
        nodes = [n for n in ast.walk(one) if isinstance(n, ast.Constant)]
        words = [str(node.value) for node in nodes]
        modes = [word for word in words if word in ("0", "1")]
        if _MODE in words and modes and isinstance(one, (ast.Assign, ast.Expr)):
            if not imported:
                os.environ[_MODE] = modes[0]
            elif os.environ.get(_MODE, "1") != modes[0]:
                row = ("mode", _MODE, _LATE, _EARLIER, f"{script}:{one.lineno}")
                note.found(Finding("differs", *row))
        imported |= _SDK in imported_by(one)


@contextmanager
def compiling(note: Notebook, lazy: bool) -> Iterator[None]:
    """Within, a program runs as it is written, but for what it has the SDK compile."""
    compiler: Any = torch.compile

    def compile(*args: Any, **kwargs: Any) -> Any:
        made, name = compiler(*args, **kwargs), str(kwargs.get("backend"))
        if not (args and name.startswith(_BACKEND)):
            return made
        if lazy:
            site = sites.line_asking()
            note.found(Finding("breaks", "torch.compile", name, _LAZY, _EARLIER, site))
            return made
        if not isinstance(made, nn.Module):
            return or_uncompiled(made, _OPERATOR)
        made.forward = or_uncompiled(made.forward, _OPERATOR)
        return made

    with uncompiled(), patch.object(torch, "compile", compile):
        yield
