"""A LightningModule, which also runs under Lightning's own Trainer."""

import lightning
import torch
from torch import nn
from torch.nn.functional import cross_entropy


class MyModule(lightning.LightningModule):
    def __init__(self, width=64, lr=0.01):
        super().__init__()
        self.save_hyperparameters()
        layers = (nn.Flatten(), nn.Linear(64, width), nn.ReLU(), nn.Linear(width, 10))
        self.net = nn.Sequential(*layers)

    def training_step(self, batch, batch_idx):
        images, labels = batch
        loss = cross_entropy(self.net(images), labels)
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch, batch_idx):
        images, labels = batch
        scores = self.net(images)
        accuracy = (scores.argmax(1) == labels).float().mean()
        self.log_dict({"val_loss": cross_entropy(scores, labels), "val_acc": accuracy})

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=self.hparams["lr"])
