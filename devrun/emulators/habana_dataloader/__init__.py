"""A look-alike of Intel Gaudi's image loader: torch's own, with its conditions."""

from __future__ import annotations

from habana_dataloader import habana_dataset
from habana_dataloader.habana_dataset import HabanaDataLoader

__all__ = ["HabanaDataLoader", "habana_dataset"]
