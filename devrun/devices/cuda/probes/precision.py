"""Operators that CUDA's autocast refuses, which a CPU's accepts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from devrun.devices.cuda.probes.watch import Judge, Op
from devrun.probes.finding import Finding
from devrun.probes.sites import line_asking

_REFUSED = "binary_cross_entropy"
"""The one that CUDA's table bans; what else is unsafe there is computed in fp32."""
_LOGITS = "torch.nn.functional.binary_cross_entropy_with_logits(logits, target)"


class Precision(Judge):
    """Notes a binary cross entropy of probabilities, which half precision rounds."""

    def __init__(self) -> None:
        self.loss_site: str | None = None
        """Where the config names its loss."""
        self._counts: Counter[str | None] = Counter()

    def operator(self, op: Op) -> None:
        if op.name == _REFUSED and op.autocast:
            self._counts[line_asking()] += 1

    def findings(self, updates: int) -> Iterator[Finding]:
        for site, count in self._counts.items():
            remedy = f"{_LOGITS}, without the sigmoid"
            if site is None and self.loss_site is not None:
                remedy = "loss: {type: BCEWithLogitsLoss}, and a model without sigmoid"
            yield Finding(
                severity="breaks",
                kind="autocast",
                what=_REFUSED,
                why="CUDA's autocast raises for it, since log of a rounded "
                "probability is not safe",
                remedy=remedy,
                site=site or self.loss_site,
                per_step=count / updates,
            )
