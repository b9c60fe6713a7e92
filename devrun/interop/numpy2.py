"""What packages of OpenMMLab call of NumPy that newer ones do otherwise, or not at all.

- `mmcv.adjust_hue` writes `np.uint8(hue_factor * 255)`, which was taken modulo 256
  until NumPy 2 made a negative number an OverflowError. Jitters of colours call it.
- MMPretrain's retrieval metrics call `np.in1d`, which NumPy 2.4 has as `np.isin` only.
- MMDetection 2 says `np.int`, which NumPy 1.24 took out.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from importlib import import_module
from typing import Any

_MODULES = ("mmcv", "mmcv.image", "mmcv.image.photometric")
_WITH_INT = (
    "mmdet.datasets.custom",
    "mmdet.datasets.openimages",
    "mmdet.core.bbox.samplers.iou_balanced_neg_sampler",
)


def mend(package: str) -> None:
    """Put forms that work with the NumPy at hand in place of those that stop there."""
    _mend_hue()
    np: Any = import_module("numpy")
    if package == "mmpretrain" and not hasattr(np, "in1d"):
        _give("mmpretrain.evaluation.metrics.retrieval", in1d=np.isin)
    for module in _WITH_INT if package == "mmdet" else ():
        _give(module, int=int)


def _give(module: str, **names: Any) -> None:
    """Have the module see a numpy with these names too; numpy stays as it is."""
    home: Any = import_module(module)
    view: Any = types.ModuleType("numpy")
    vars(view).update(vars(home.np), **names)
    home.np = view


def _mend_hue() -> None:
    if "mmcv.image" not in sys.modules:
        return
    np: Any = import_module("numpy")
    try:
        np.uint8(-1)
    except OverflowError:
        module: Any = import_module("mmcv.image.photometric")
        own = module.adjust_hue
        if own.__module__ == module.__name__:
            mended = _both_ways(own)
            for name in _MODULES:
                vars(sys.modules[name])["adjust_hue"] = mended


def _both_ways(own: Callable[..., Any]) -> Callable[..., Any]:
    def adjust_hue(img: Any, hue_factor: float, backend: str | None = None) -> Any:
        """As MMCV's: `img` (H, W, 3) BGR with its hue turned by `hue_factor`, in
        [-0.5, 0.5] of the whole circle."""
        if not -0.5 <= hue_factor < 0:
            return own(img, hue_factor, backend=backend)
        np: Any = import_module("numpy")
        shift = np.uint8(int(hue_factor * 255) % 256)
        module: Any = import_module("mmcv.image.photometric")
        if (backend or module.imread_backend) == "pillow":
            image: Any = import_module("PIL.Image")
            hsv = np.array(image.fromarray(img[..., ::-1]).convert("HSV"))
            hsv[..., 0] += shift
            rgb = image.fromarray(hsv, "HSV").convert("RGB")
            return np.array(rgb, dtype=img.dtype)[..., ::-1]
        cv2: Any = import_module("cv2")
        hsv = cv2.cvtColor(img.astype(np.uint8), cv2.COLOR_BGR2HSV_FULL)
        hsv[..., 0] += shift
        return cv2.cvtColor(hsv, cv2.COLOR_HSV2BGR_FULL).astype(img.dtype)

    return adjust_hue
