"""A LightningModule and a LightningDataModule, run by devrun instead of a Trainer.

    devrun train examples/lightning_digits.yaml --import lightning_digits

Nothing in this file is devrun's: it also runs under `lightning.Trainer`. What
`validation_step` logs are the results of the evaluation.
"""

from __future__ import annotations

from typing import Any

import lightning
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset


class Digits(lightning.LightningDataModule):
    """1797 handwritten digits of 8 x 8 pixels, every fifth of them for validation."""

    def __init__(self, batch_size: int = 64) -> None:
        super().__init__()
        self.batch_size = batch_size

    def setup(self, stage: str) -> None:
        digits = load_digits()
        images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
        labels = torch.tensor(digits.target)
        held_out = torch.arange(len(labels)) % 5 == 0
        self.train = TensorDataset(images[~held_out], labels[~held_out])
        self.val = TensorDataset(images[held_out], labels[held_out])

    def train_dataloader(self) -> Any:
        return DataLoader(self.train, batch_size=self.batch_size, shuffle=True)

    def val_dataloader(self) -> Any:
        return DataLoader(self.val, batch_size=self.batch_size)


class DigitsNet(lightning.LightningModule):
    """Two layers.

    Args:
        width: of the hidden layer.
        lr: the learning rate of the first epoch.
    """

    def __init__(self, width: int = 64, lr: float = 0.01) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.net = nn.Sequential(
            nn.Flatten(), nn.Linear(64, width), nn.ReLU(), nn.Linear(width, 10)
        )

    def forward(self, images: Tensor) -> Tensor:
        scores: Tensor = self.net(images)
        return scores

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        images, labels = batch
        loss = nn.functional.cross_entropy(self(images), labels)
        self.log("train_loss", loss, on_epoch=True)
        return loss

    def validation_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        images, labels = batch
        scores = self(images)
        accuracy = (scores.argmax(1) == labels).float().mean()
        loss = nn.functional.cross_entropy(scores, labels)
        self.log_dict({"val_loss": loss, "val_acc": accuracy}, prog_bar=True)

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=self.hparams["lr"])
        epochs = self.trainer.max_epochs or 1
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=epochs)
        return {"optimizer": optimizer, "lr_scheduler": schedule}
