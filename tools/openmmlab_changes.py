"""What the survey overrides in a config of MMClassification, for a tiny run of it."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from typing import Any

from openmmlab_data import FEW

GROUPS = {
    "model": ("model",),
    "data": ("data", "sampler"),
    "optimizer": ("optimizer", "optimizer_config", "fp16"),
    "schedule": ("lr_config", "momentum_config", "runner", "workflow"),
    "hooks": ("custom_hooks", "log_config", "checkpoint_config", "evaluation"),
}
"""What a config consists of, for whether another one ran the same."""
SIZES = (64, None)
"""Of the images, at most, in the order in which they are tried; None is their own."""
FIXED = ("VGG", "RepMLPNet", "MViT")
"""Backbones whose layers fit one size of images only."""
URL = re.compile(r"https?://|open-mmlab://|torchvision://")


def changes(file: Path, size: int | None) -> tuple[list[str], dict[str, Any]]:
    """A sum of each section as it is run, and the overrides for a tiny run.

    Args:
        size: of the images, at most; None for the config's own.
    """
    from devrun.config import Config

    cfg: Any = Config.fromfile(file, import_custom_modules=False)
    options: dict[str, Any] = {
        "data.samples_per_gpu": FEW,
        "data.workers_per_gpu": 0,
        "evaluation.interval": 1,
        "checkpoint_config": None,
        "work_dir": "work",
    }
    by_iter = "max_iters" in cfg.runner
    options["runner.max_iters" if by_iter else "runner.max_epochs"] = 1
    for section in ("train_dataloader", "val_dataloader"):
        if section in cfg.data:
            options[f"data.{section}"] = {"_delete_": True}
    if URL.match(str(cfg.get("load_from"))):
        options["load_from"] = None
    if cfg.get("sampler"):
        options["sampler.selected_round"] = 0
    options.update((path, None) for path in downloads(cfg.model, "model"))
    if size is not None and cfg.model.backbone.type not in FIXED:
        options.update(shrink(cfg, size))
    if "options_cfg" in cfg.runner:  # of an IPU, which wants that many samples
        path = "runner.options_cfg.train_cfg.Training.gradientAccumulation"
        options[path], options["data.samples_per_gpu"] = FEW * 4, FEW
        pipeline = options.pop("data.train.pipeline", cfg.data.train.pipeline)
        train = {**cfg.data.train.to_dict(), "pipeline": pipeline}
        repeated = {"type": "RepeatDataset", "times": FEW * 4, "_delete_": True}
        options["data.train"] = {**repeated, "dataset": train}
    cfg.merge_from_dict(options)
    tree = cfg._cfg_dict.to_dict()
    parts = [[group, *(tree.get(key) for key in GROUPS[group])] for group in GROUPS]
    texts = [json.dumps(part, sort_keys=True, default=str) for part in parts]
    return [hashlib.sha1(x.encode()).hexdigest()[:12] for x in texts], options


def shrink(cfg: Any, size: int) -> dict[str, Any]:
    """Overrides for images of `size` x `size`."""
    backbone = cfg.model.backbone
    options: dict[str, Any] = {}
    if "img_size" in backbone:
        options["model.backbone.img_size"] = size
    if backbone.type.startswith("SwinTransformer"):
        options["model.backbone.pad_small_map"] = True
    for mode in ("train", "val", "test"):
        for path, node in pipelines(cfg.data.get(mode), f"data.{mode}"):
            steps = [dict(step) for step in node]
            for step in steps:
                for key in ("size", "crop_size"):
                    if key in step:
                        step[key] = at_most(step[key], size)
            options[path] = steps
    return options


def at_most(value: Any, size: int) -> Any:
    if isinstance(value, (list, tuple)):
        return tuple(at_most(part, size) for part in value)
    return min(value, size)


def pipelines(node: Any, path: str) -> list[tuple[str, Any]]:
    """Each pipeline below a section of `data`, with its path."""
    if not isinstance(node, dict):
        return []
    found = [(f"{path}.pipeline", node["pipeline"])] if "pipeline" in node else []
    return found + pipelines(node.get("dataset"), f"{path}.dataset")


def downloads(node: Any, path: str) -> list[str]:
    """The `init_cfg` whose checkpoint is on the network, and `pretrained`."""
    found: list[str] = []
    if isinstance(node, dict):
        for key, value in node.items():
            if key == "init_cfg" and isinstance(value, dict):
                if URL.match(str(value.get("checkpoint"))):
                    found.append(f"{path}.{key}")
            elif key == "pretrained" and URL.match(str(value)):
                found.append(f"{path}.{key}")
            else:
                found += downloads(value, f"{path}.{key}")
    return found
