"""Evaluation during training, and the best checkpoints by its results."""

from devrun.hooks.evaluation.best import infer_rule, is_better
from devrun.hooks.evaluation.hook import DistEvalHook, EvalHook

__all__ = ["DistEvalHook", "EvalHook", "infer_rule", "is_better"]
