"""Configs of packages on MMCV 1.x in devrun's words, as far as they differ."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from copy import deepcopy
from typing import Any

from devrun.config.config import Config
from devrun.config.tree import ConfigDict, where
from devrun.optim import OPTIONS

logger = logging.getLogger("devrun")


def adapted(cfg: Mapping[str, Any]) -> Any:
    """`cfg` as devrun reads it; `cfg` is not changed.

    - data sets in a list are their ConcatDataset, which evaluates each by itself;
    - `data.val` and `data.test` are built with `test_mode`, as their tools do;
    - a `val` phase of the workflow takes `data.val` with the pipeline of training,
      which has the labels that a loss needs, as `data.val_phase`;
    - `sampler` at the top is that of the training loader;
    - options of `paramwise_cfg` that nothing reads are left out, with a warning.
    """
    tree: Any = deepcopy(getattr(cfg, "_cfg_dict", cfg))
    if not isinstance(tree, ConfigDict):
        tree = ConfigDict(tree)
    data = tree.get("data")
    if isinstance(data, dict):
        if any(step[0] == "val" for step in tree.get("workflow") or ()):
            inner = _pipeline(data["train"])
            data["val_phase"] = _with_pipeline(data.get("val"), inner)
        for mode in ("train", "val", "test"):
            if isinstance(data.get(mode), (list, tuple)):
                data[mode] = {"type": "ConcatDataset", "datasets": data[mode]}
            if mode != "train":
                _in_test_mode(data.get(mode))
        sampler = tree.get("sampler")
        if sampler is not None:
            data.setdefault("sampler_cfg", sampler)
    optimizer = tree.get("optimizer")
    if isinstance(optimizer, dict) and "constructor" not in optimizer:
        _without_unread(optimizer.get("paramwise_cfg"))
    return cfg._with(tree) if isinstance(cfg, Config) else tree


def _pipeline(section: Any) -> Any:
    """That of the data itself, inside of what wraps it; the first one's of several."""
    while isinstance(section, dict) and "pipeline" not in section:
        section = section.get("dataset", section.get("datasets"))
        if isinstance(section, (list, tuple)) and section:
            section = section[0]
    return section["pipeline"] if isinstance(section, dict) else None


def _with_pipeline(section: Any, pipeline: Any) -> Any:
    if not isinstance(section, dict) or pipeline is None:
        return section
    made = deepcopy(section)
    made["pipeline"] = deepcopy(pipeline)
    return made


def _without_unread(options: Any) -> None:
    """MMCV's constructor takes any option; some configs have a misspelt one."""
    if isinstance(options, dict):
        for key in [key for key in options if key not in OPTIONS]:
            logger.warning("%snot read, as in MMCV", where(options, key))
            del options[key]


def _in_test_mode(section: Any) -> None:
    """Set `test_mode` where the data itself is named, inside of what wraps it."""
    if isinstance(section, (list, tuple)):
        for part in section:
            _in_test_mode(part)
    elif isinstance(section, dict):
        inner = section.get("dataset", section.get("datasets"))
        if inner is not None:
            _in_test_mode(inner)
        else:
            section.setdefault("test_mode", True)
