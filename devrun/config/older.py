"""What MMCV's published configs have at the top that is no section of its own."""

from __future__ import annotations

import re
from typing import Any

from devrun.config.tree import origin_of
from devrun.place import COMMAND_LINE

RUNNERS = {
    "total_epochs": ("EpochBasedRunner", "max_epochs"),
    "total_iters": ("IterBasedRunner", "max_iters"),
}
"""Key -> the `type` and the limit of the `runner` section that it stands for."""
USUAL_HELPERS = re.compile(
    r"(ann_file|data_root|dataset_type|img_norm_cfg|norm_cfg|classes|class_names"
    r"|CLASSES|crop_size|img_scale|img_size|\w+_pipeline|channel_cfg|dataset_info"
    r"|policy_imagenet|\w*policies)(_\w+)?"
)
"""Variables of published configs, which some leave unused."""


def give_runner(cfg: Any) -> None:
    """Make the `runner` of `cfg` from `total_epochs` or `total_iters`, if it has none.

    As in MMCV's tools. Beside a `runner` with a type, the key stays, and is refused.
    """
    for key, (kind, limit) in RUNNERS.items():
        runner = cfg.get("runner") or {}
        if cfg.get(key) is None or not isinstance(runner, dict) or "type" in runner:
            continue
        made = {"runner.type": kind}
        if limit not in runner:  # --cfg-options may have given it
            made[f"runner.{limit}"] = cfg[key]
        cfg.merge_from_dict(made, origin=origin_of(cfg._cfg_dict, key) or COMMAND_LINE)
        del cfg[key]
