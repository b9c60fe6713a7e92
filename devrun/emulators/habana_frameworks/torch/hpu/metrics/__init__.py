"""What was counted, by the SDK's own metric names."""

from __future__ import annotations

from habana_frameworks.torch.hpu.metrics.exceptions import MetricNotFound
from habana_frameworks.torch.hpu.metrics.metrics import (
    metric_global,
    metric_localcontext,
    metrics_dump,
)

__all__ = ["MetricNotFound", "metric_global", "metric_localcontext", "metrics_dump"]
