"""A LightningDataModule: handwritten digits of scikit-learn."""

import lightning
import torch
from sklearn.datasets import load_digits
from torch.utils.data import DataLoader, TensorDataset


class MyDigits(lightning.LightningDataModule):
    def __init__(self, batch_size=64):
        super().__init__()
        self.batch_size = batch_size

    def setup(self, stage):
        digits = load_digits()
        images = torch.tensor(digits.images, dtype=torch.float32) / 16
        labels = torch.tensor(digits.target)
        held_out = torch.arange(len(labels)) % 5 == 0
        self.train = TensorDataset(images[~held_out], labels[~held_out])
        self.val = TensorDataset(images[held_out], labels[held_out])

    def train_dataloader(self):
        return DataLoader(self.train, batch_size=self.batch_size, shuffle=True)

    def val_dataloader(self):
        return DataLoader(self.val, batch_size=self.batch_size)
