"""MMCV without its compiled operators (mmcv, mmcv-lite): a stand-in for `mmcv._ext`.

The packages on MMCV import all of their models at once, and most need none of the
operators. Here each of them is there, and says by its name that it is missing when it
is called.
"""

from __future__ import annotations

import importlib.util
import sys
import types
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from typing import Any, NoReturn

from devrun.errors import UnsupportedFeatureError
from devrun.importing import import_for_config

_NAME = "mmcv._ext"


class _Finder(MetaPathFinder, Loader):
    """Finds the stand-in; asked last, so that a real module is found before."""

    def find_spec(
        self, fullname: str, path: Any, target: Any = None
    ) -> ModuleSpec | None:
        return ModuleSpec(_NAME, self) if fullname == _NAME else None

    def exec_module(self, module: types.ModuleType) -> None:
        vars(module)["__getattr__"] = _missing


def stand_in() -> None:
    """Put the stand-in into place where MMCV is here without the real module.

    Raises:
        ConfigError: MMCV is where a config cannot import from.
    """
    if _NAME in sys.modules or importlib.util.find_spec("mmcv") is None:
        return
    import_for_config("mmcv")  # to look for a module in it would import it anyhow
    if importlib.util.find_spec(_NAME) is None:
        sys.meta_path.append(_Finder())


def _missing(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)

    def missing(*args: Any, **kwargs: Any) -> NoReturn:
        version = str(getattr(sys.modules.get("mmcv"), "__version__", ""))
        whole = "mmcv-full 1.7" if version.startswith("1.") else "mmcv 2.1"
        raise UnsupportedFeatureError(
            f"{name} is one of MMCV's compiled operators, which this mmcv {version} "
            f"does not have: install {whole} for this torch, or take a model without it"
        )

    return missing
