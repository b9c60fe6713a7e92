"""Configs of packages on MMCV 1.x in devrun's words, as far as they differ."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from typing import Any

from devrun.config.tree import ConfigDict

__all__ = ["adapted"]


def adapted(cfg: Mapping[str, Any]) -> ConfigDict:
    """`cfg` as devrun reads it; `cfg` is not changed.

    - `data.val` and `data.test` are built with `test_mode`, as their tools do;
    - `sampler` at the top is that of the training loader;
    - an empty or missing `workflow` trains.
    """
    tree: ConfigDict = deepcopy(getattr(cfg, "_cfg_dict", cfg))
    if not isinstance(tree, ConfigDict):
        tree = ConfigDict(tree)
    data = tree.get("data")
    if isinstance(data, dict):
        for mode in ("val", "test"):
            _in_test_mode(data.get(mode))
        sampler = tree.get("sampler")
        if sampler is not None:
            data.setdefault("sampler_cfg", sampler)
    return tree


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
