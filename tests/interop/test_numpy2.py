"""MMCV's jitter of colours, which stops on NumPy 2 without what devrun puts there."""

import importlib
import importlib.util

import pytest

from devrun.interop.packages import mend_numpy
from tests.support.packages import vision

pytestmark = pytest.mark.filterwarnings("ignore")  # of packages not maintained


@pytest.fixture
def mmcv(monkeypatch):
    if importlib.util.find_spec("mmcv") is None:
        pytest.skip("needs mmcv, which is not installed")
    vision("torchvision")
    module = importlib.import_module("mmcv")
    importlib.import_module("mmcv.image")
    mend_numpy("mmcv")
    return module


@pytest.mark.parametrize("backend", ["cv2", "pillow"])
@pytest.mark.parametrize("factor", [-0.5, -0.2, -0.001, 0.0, 0.3, 0.5])
def test_a_hue_turns_both_ways(mmcv, backend, factor):
    np = pytest.importorskip("numpy")
    image = np.random.default_rng(0).integers(0, 256, (6, 7, 3), dtype=np.uint8)
    found = mmcv.adjust_hue(image, factor, backend=backend)
    assert (found.shape, found.dtype) == (image.shape, image.dtype)
    hue = _hue(found.astype(int))
    before = _hue(image.astype(int))
    grey = image.astype(int).max(2) - image.astype(int).min(2) < 60
    off = (hue - before - int(factor * 255) / 256 + 0.5) % 1 - 0.5
    assert np.abs(off[~grey]).max() < 0.03


def _hue(bgr):
    """In parts of the circle, by the definition of HSV."""
    import colorsys

    import numpy as np

    return np.array(
        [[colorsys.rgb_to_hsv(*(p[::-1] / 255))[0] for p in row] for row in bgr]
    )
