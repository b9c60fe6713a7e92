"""A model and a data set of your own, under names that a config can use.

    devrun train examples/own_model.yaml --import own_model

`--import` finds this module beside the config. Inside an installed package, list it in
`custom_imports` of the config instead.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from devrun import DATASETS, MODELS
from devrun.data import DigitsDataset


@DATASETS.register_module()
class DigitColumns(Dataset[dict[str, Tensor]]):
    """Images of digits as the ink in their 8 columns and 8 rows.

    Args:
        split: `train` or `val`.
    """

    def __init__(self, split: str = "train") -> None:
        images = DigitsDataset(split)
        grey = images.images[:, 0].float() / 255
        self.ink = torch.cat([grey.mean(1), grey.mean(2)], dim=1)
        self.labels = images.targets

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {"ink": self.ink[index], "labels": self.labels[index]}


@MODELS.register_module()
class ColumnNet(nn.Module):
    """Two layers, and the loss: `forward` takes what a sample has, by name.

    A model may leave the loss to the config instead, return its output alone, and take
    batches of `(x, y)`.
    """

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(16, width), nn.GELU(), nn.Linear(width, 10))

    def forward(self, ink: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        logits = self.body((ink - 0.3) / 0.2)
        if labels is None:
            return {"logits": logits}
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}
