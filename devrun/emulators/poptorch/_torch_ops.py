"""Operators that programs call by `torch.ops.poptorch`, below PopTorch's functions."""

from __future__ import annotations

import torch

from poptorch._torch_private import new_library

_libraries: list[torch.library.Library] = []


def install() -> None:
    """Register them, once: scopes of names, which have no effect on values."""
    if _libraries:
        return
    library = new_library("poptorch")
    library.define("push_name_scope(str name) -> ()")
    library.define("pop_name_scope() -> ()")
    kind = "CompositeExplicitAutograd"
    library.impl("push_name_scope", lambda name: None, kind)
    library.impl("pop_name_scope", lambda: None, kind)
    _libraries.append(library)
