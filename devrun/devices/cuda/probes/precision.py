"""Operators that CUDA's autocast refuses, which a CPU's accepts."""

from __future__ import annotations

from devrun.devices.cuda.probes.watch import Judge, Op
from devrun.probes.sites import line_asking

_REFUSED = "binary_cross_entropy"
"""The one that CUDA's table bans; what else is unsafe there is computed in fp32."""
_WHY = "CUDA's autocast raises for it: log of a rounded probability is not safe"
_LOGITS = "torch.nn.functional.binary_cross_entropy_with_logits(logits, target)"


class Precision(Judge):
    """Notes a binary cross entropy of probabilities, which half precision rounds."""

    loss_site: str | None = None
    """Where the config names its loss."""

    def operator(self, op: Op) -> None:
        if op.name != _REFUSED or not op.autocast:
            return
        site, remedy = line_asking(), f"{_LOGITS}, without the sigmoid"
        if site is None and self.loss_site is not None:
            remedy = "loss: {type: BCEWithLogitsLoss}, and a model without sigmoid"
        row = ("breaks", "autocast", _REFUSED, _WHY, remedy, site or self.loss_site)
        self.counts[row] += 1
