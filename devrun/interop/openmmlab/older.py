"""What packages on MMCV 1.x wrote for numpy 1, made to run on numpy 2."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import numpy as np

_WITH_INT = {
    "mmdet": (
        "mmdet.datasets.custom",
        "mmdet.datasets.openimages",
        "mmdet.core.bbox.samplers.iou_balanced_neg_sampler",
    ),
    "mmpose": (
        "mmpose.datasets.pipelines.bottom_up_transform",
        "mmpose.datasets.datasets.body3d.body3d_mview_direct_panoptic_dataset",
    ),
}
"""Modules that say `np.int`, which numpy 1.24 took out."""
_HEADS = (
    "topdown_heatmap_base_head:TopdownHeatmapBaseHead",
    "deeppose_regression_head:DeepposeRegressionHead",
    "interhand_3d_head:Interhand3DHead",
)
"""MMPose's, whose `decode` puts an array of one score where a number is meant."""


def mend(name: str) -> None:
    """Give the package `name` what it needs of numpy 1, in its own modules."""
    for module in map(import_module, _WITH_INT.get(name, ())):
        vars(module)["np"] = SimpleNamespace(**{**vars(module.np), "int": int})
    for path in _HEADS if name == "mmpose" else ():
        home, _, kind = path.partition(":")
        head = getattr(import_module(f"mmpose.models.heads.{home}"), kind)
        head.decode = _scored(head.decode)


def _scored(decode: Callable[..., Any]) -> Callable[..., Any]:
    """`decode` that gets no scores of boxes, and what it gives with them."""

    @functools.wraps(decode)
    def scored(
        self: Any, img_metas: Sequence[Mapping[str, Any]], *args: Any, **options: Any
    ) -> Any:
        scores = [np.ravel(meta.get("bbox_score", 1.0))[0] for meta in img_metas]
        metas = [
            {key: value for key, value in meta.items() if key != "bbox_score"}
            for meta in img_metas
        ]
        result = decode(self, metas, *args, **options)
        result["boxes"][:, 5] = scores
        return result

    return scored
