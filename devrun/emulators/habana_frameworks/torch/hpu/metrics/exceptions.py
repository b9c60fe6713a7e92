"""The one error of the metrics."""

from __future__ import annotations


class MetricNotFound(Exception):  # noqa: N818 - the SDK's name
    """There is no metric of that name."""
