"""Numbers of the user's modules, classes and functions, which a new process has as they
begin."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterator
from copy import deepcopy
from os.path import isabs
from types import FunctionType, ModuleType
from typing import Any, Union

import numpy as np
import torch
from torch import Tensor

from devrun.probes.sites import is_library, user_line

Shared = Union[type, ModuleType, FunctionType]
"""A class, a file or a function, whose values outlive a run."""
_NAMED = (type, FunctionType)
_HOLDERS = (list, dict, set, deque)
_LONGEST = 1000
"""Parts of what is looked through; what is longer is data."""


class Fresh:
    """What each had when `look` first saw it; `restore` makes it so again, as for a run
    that begins in a new process."""

    def __init__(self) -> None:
        self._held: list[tuple[Shared, str, Any, Any]] = []
        self._known: set[Shared] = set()
        self.look()

    def look(self) -> None:
        """Note what the modules hold that were imported since."""
        for owner in set(shared()) - self._known:
            self._known.add(owner)
            numbers = numbers_of(owner)
            self._held += [(owner, n, value, deepcopy(value)) for n, value in numbers]

    def restore(self) -> None:
        for owner, name, value, begun in self._held:
            if isinstance(value, (Tensor, np.ndarray)):
                with torch.no_grad():
                    value[...] = begun
            elif isinstance(value, _HOLDERS):  # another module may hold it too
                value.clear()
                if isinstance(value, (list, deque)):
                    value.extend(deepcopy(begun))
                else:
                    value.update(deepcopy(begun))
            setattr(owner, name, value)


def shared() -> Iterator[Shared]:
    """The user's modules, and the classes and functions in them."""
    for module in list(sys.modules.values()):
        file = vars(module).get("__file__") or ""
        of_user = isabs(file) and user_line([(file, 0)])  # torch makes some of no file
        if of_user and not is_library(file):
            yield module
            own = (v for v in vars(module).values() if isinstance(v, _NAMED))
            yield from (one for one in own if one.__module__ == module.__name__)


def numbers_of(owner: Shared) -> list[tuple[str, Any]]:
    """Name and value of its numbers and tensors, and of lists and the like of these."""
    named = vars(owner).items()
    return [(n, v) for n, v in named if not n.startswith("__") and _is_plain(v)]


def _is_plain(value: Any) -> bool:
    if isinstance(value, _HOLDERS) and len(value) <= _LONGEST:
        parts = value.values() if isinstance(value, dict) else value
        return all(isinstance(one, (int, float, str, Tensor)) for one in parts)
    array = isinstance(value, np.ndarray) and value.dtype != object
    return array or isinstance(value, (int, float)) or type(value) is Tensor
