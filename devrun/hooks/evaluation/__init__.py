"""Evaluation during training, and the best checkpoints by its results."""

from devrun.hooks.evaluation.best import infer_rule as infer_rule
from devrun.hooks.evaluation.best import is_better as is_better
from devrun.hooks.evaluation.hook import DistEvalHook as DistEvalHook
from devrun.hooks.evaluation.hook import EvalHook as EvalHook
