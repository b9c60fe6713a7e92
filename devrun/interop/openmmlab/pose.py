"""What MMPose 0.29 alone needs: its imports, and its predictions sample by sample."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import Any

from devrun.importing import import_for_config

_NEWEST = "1.7.0"
"""The newest MMCV that it knows; those that came after, 1.7.1 and 1.7.2, mended it."""
_MASK = ("area", "decode", "encode", "frPyObjects", "iou", "merge", "toBbox")
"""What both have in their compiled part."""
_BATCHES = ("image_paths", "target_image_paths")
"""Parts of a prediction that have an entry for each sample of the batch."""


@contextmanager
def importable() -> Iterator[None]:
    """Inside, MMPose can be imported with what is installed.

    It compares the version of MMCV while it is imported, and at no other time. Its
    xtcocotools is built against numpy 1 only; compiled for it is what pycocotools has
    too, under the same names.
    """
    import_for_config("mmcv")
    mmcv = sys.modules["mmcv"]
    version = str(mmcv.__version__)
    try:
        import_for_config("xtcocotools.mask")
    except (ImportError, ValueError):  # none here, or built for another numpy
        sys.meta_path.insert(0, _Lender())
    if version.startswith("1.7."):
        vars(mmcv)["__version__"] = _NEWEST
    try:
        yield
    finally:
        vars(mmcv)["__version__"] = version


class _Lender(MetaPathFinder, Loader):
    """Gives a xtcocotools that does not load the compiled part of pycocotools."""

    def find_spec(
        self, fullname: str, path: Any, target: Any = None
    ) -> ModuleSpec | None:
        if fullname != "xtcocotools._mask" or find_spec("pycocotools") is None:
            return None
        return ModuleSpec(fullname, self)

    def exec_module(self, module: ModuleType) -> None:
        compiled = import_for_config("pycocotools._mask")
        for name in _MASK:
            setattr(module, name, getattr(compiled, name))


def split_predictions(model: Any) -> None:
    """Have `model` predict a list with one entry a sample, as other packages do.

    MMPose predicts one dict for a batch, and its data sets judge a list of these.
    """
    base = import_module("mmpose.models.detectors.base").BasePose
    if isinstance(model, base):
        model.register_forward_hook(_split)


def _split(model: Any, args: Any, output: Any) -> Any:
    counts = [
        len(output[name])
        for name in _BATCHES
        if isinstance(output, Mapping) and name in output
    ]
    if not counts:
        return output
    if counts[0] == 1:  # its parts may have other lengths, such as that of persons
        return [output]
    return [
        {key: v if v is None else v[i : i + 1] for key, v in output.items()}
        for i in range(counts[0])
    ]
