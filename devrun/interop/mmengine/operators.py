"""MMCV without its compiled operators (mmcv-lite): a call of one says so."""

from __future__ import annotations

import importlib.util
import sys
import types
from importlib.machinery import ModuleSpec
from typing import Any, NoReturn

from devrun.errors import UnsupportedFeatureError

__all__ = ["stand_in"]

_NAME = "mmcv._ext"


def stand_in() -> None:
    """Let packages import `mmcv.ops`, whose every operator MMCV looks up then.

    MMSegmentation imports all of its models at once; most need no operator.
    """
    if _NAME in sys.modules or importlib.util.find_spec("mmcv") is None:
        return
    if importlib.util.find_spec(_NAME) is None:
        module = types.ModuleType(_NAME, __doc__)
        module.__spec__ = ModuleSpec(_NAME, None)
        vars(module)["__getattr__"] = _operator
        sys.modules[_NAME] = module


def _operator(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)

    def missing(*args: Any, **kwargs: Any) -> NoReturn:
        raise UnsupportedFeatureError(
            f"{name} is one of MMCV's compiled operators, which mmcv-lite does not "
            "have: install mmcv 2.1 for this torch, or take a model without it"
        )

    return missing
