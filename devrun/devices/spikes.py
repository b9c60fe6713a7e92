"""`SpikeDetector`: which losses are too far above those before them."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from statistics import median
from typing import Any


class SpikeDetector:
    """A loss is a spike when its robust z-score in the last `window` losses is high.

    The modified z-score of Iglewicz and Hoaglin, "How to Detect and Handle Outliers"
    (1993): (loss - median) / (1.4826 * MAD), where MAD is the median distance from
    the median, and 1.4826 makes that the standard deviation of normal noise. Only
    losses above all others of the window are looked at. A scale of less than a
    hundredth of the median counts as that, so that a smooth curve raises no alarms.

    Args:
        window: losses to compare with.
        threshold: z-score from which a loss is a spike.
        least: losses there must be before any is judged.
    """

    def __init__(
        self, window: int = 128, threshold: float = 10.0, least: int = 32
    ) -> None:
        self.threshold, self.least = threshold, least
        self._losses: deque[float] = deque(maxlen=window)

    def score(self, loss: float) -> float | None:
        """The z-score of a finite `loss` if that is a spike; else it joins the window
        and None is returned."""
        known = self._losses
        if len(known) >= self.least and loss > max(known):
            middle = median(known)
            spread = median(abs(value - middle) for value in known)
            scale = max(1.4826 * spread, 0.01 * abs(middle), 1e-12)
            if (score := (loss - middle) / scale) > self.threshold:
                return score
        known.append(loss)
        return None

    def state_dict(self) -> dict[str, Any]:
        """The losses of the window."""
        return {"losses": list(self._losses)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take back what `state_dict` gave."""
        self._losses.clear()
        self._losses.extend(map(float, state["losses"]))
