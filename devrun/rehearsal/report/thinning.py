"""Long curves with fewer points, and every spike still there."""

from __future__ import annotations

import numpy as np


def thinned(
    steps: np.ndarray, values: np.ndarray, points: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """At most about `points` of them: the least and the greatest of each stretch.

    Args:
        steps: ascending, of shape (n,).
        values: of shape (n,); what is not finite is never left out by another value.
        points: how many to keep.

    Returns:
        Steps, values and the mean of each point's stretch (of its finite values; NaN
        where there is none), all of the same length, in order. All n points, each its
        own mean, where n is no more than `points`.
    """
    count = len(values)
    if count <= points:
        return steps, values, np.where(np.isfinite(values), values, np.nan)
    # each stretch gives its extremes and the first of each kind that is not finite
    edges = np.linspace(0, count, max(points // 2, 1) + 1).astype(int)
    stretch = np.repeat(np.arange(len(edges) - 1), np.diff(edges))
    finite = np.isfinite(values)
    starts = edges[:-1]
    sums = np.add.reduceat(np.where(finite, values, 0.0), starts)
    counts = np.add.reduceat(finite.astype(int), starts)
    means = np.divide(sums, counts, out=np.full(len(starts), np.nan), where=counts > 0)
    order = np.lexsort(
        (values, ~finite, stretch)
    )  # by stretch, finite first, ascending
    kept = np.zeros(count, dtype=bool)
    some = counts > 0
    kept[order[starts[some]]] = True
    kept[order[starts[some] + counts[some] - 1]] = True
    for odd in (np.isnan(values), np.isposinf(values), np.isneginf(values)):
        where = np.flatnonzero(odd)
        kept[where[np.unique(stretch[where], return_index=True)[1]]] = True
    return steps[kept], values[kept], means[stretch[kept]]
