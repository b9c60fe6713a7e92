"""Metrics: functions of predictions and targets, or torchmetrics by dotted path."""

from devrun.metrics.build import build_metric, build_metrics
from devrun.metrics.functional import accuracy, topk_accuracy
from devrun.metrics.kinds import FunctionMetric, MeanMetric, Perplexity, StatefulMetric
from devrun.registry import METRICS

__all__ = [
    "METRICS",
    "FunctionMetric",
    "MeanMetric",
    "Perplexity",
    "StatefulMetric",
    "accuracy",
    "build_metric",
    "build_metrics",
    "topk_accuracy",
]
