"""MMCV without its compiled operators (mmcv, mmcv-lite): a stand-in for `mmcv._ext`.

The packages on MMCV import all of their models at once, and most need none of the
operators. Of those that the others need, these are here, with the arguments of
`mmcv._ext` and gradients: by torchvision where its compiled operators load, else in
PyTorch.

    nms                         also on other devices than the CPU
    roi_align, roi_pool         roi_align with pool_mode='avg'
    deform_conv2d               plain and modulated
    sigmoid_focal_loss          Lin et al., https://arxiv.org/abs/1708.02002, (5)
    ms_deform_attn              by MMCV's own PyTorch form

Every other one says by its name that it is missing when it is called.
"""

from __future__ import annotations

import importlib.util
import logging
import sys
import types
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from typing import Any, NoReturn

from devrun.importing import import_for_config

__all__ = ["stand_in"]

_NAME = "mmcv._ext"

logger = logging.getLogger("devrun")


class _Finder(MetaPathFinder, Loader):
    """Finds the stand-in; asked last, so that a real module is found before."""

    def find_spec(
        self, fullname: str, path: Any, target: Any = None
    ) -> ModuleSpec | None:
        return ModuleSpec(_NAME, self) if fullname == _NAME else None

    def exec_module(self, module: types.ModuleType) -> None:
        from devrun.interop.operators.calls import OPERATORS

        vars(module).update(OPERATORS, __getattr__=_missing)


def stand_in() -> None:
    """Put the stand-in into place where MMCV is here without the real module.

    Raises:
        ConfigError: MMCV is where a config cannot import from.
    """
    if _NAME in sys.modules or importlib.util.find_spec("mmcv") is None:
        return
    import_for_config("mmcv")  # to look for a module in it would import it anyhow
    if importlib.util.find_spec(_NAME) is None:
        from devrun.interop.operators.forms import compiled

        sys.meta_path.append(_Finder())
        logger.info(
            "mmcv has no compiled operators here: nms, roi_align, roi_pool, "
            "deform_conv2d, sigmoid_focal_loss and ms_deform_attn are those of %s, "
            "any other is refused when it is called",
            "torchvision and PyTorch" if compiled() is not None else "PyTorch",
        )


def _missing(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)

    def missing(*args: Any, **kwargs: Any) -> NoReturn:
        from devrun.interop.operators.calls import refusal

        raise refusal(name)

    return missing
