"""The sections of an MMEngine-style configuration: what such a file is known by."""

from __future__ import annotations

from typing import Any

_MARKS = (
    "optim_wrapper",
    "train_dataloader",
    "val_dataloader",
    "test_dataloader",
    "train_cfg",
    "param_scheduler",
    "val_evaluator",
    "test_evaluator",
    "data_preprocessor",
    "default_hooks",
)
"""Sections that only MMEngine's runner reads at the top level."""

ENGINE_KEYS = frozenset(
    {
        *_MARKS,
        "auto_scale_lr",
        "compile",
        "custom_hooks",
        "custom_imports",
        "default_scope",
        "env_cfg",
        "experiment_name",
        "find_unused_parameters",
        "launcher",
        "load_from",
        "log_level",
        "log_processor",
        "model",
        "model_wrapper_cfg",
        "randomness",
        "resume",
        "runner_type",
        "strategy",
        "sync_bn",
        "test_cfg",
        "tta_model",
        "tta_pipeline",
        "val_cfg",
        "vis_backends",
        "visualizer",
        "work_dir",
    }
)
"""What MMEngine's runner reads of a configuration, and what its libraries add."""


def is_engine_style(tree: Any) -> bool:
    """Whether `tree` has the sections of MMEngine's runner, and not those of MMCV's.

    A `train_cfg` alone is no mark: MMCV's detectors had one too.
    """
    marks = [key for key in _MARKS if key in tree]
    return bool(marks) and (
        marks != ["train_cfg"] or not {"data", "runner", "optimizer"} & set(tree)
    )
