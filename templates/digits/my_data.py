"""Handwritten digits of scikit-learn; put your own samples in their place."""

import torch
from sklearn.datasets import load_digits
from torch.utils.data import Dataset

from devrun.registry import DATASETS


@DATASETS.register_module()
class MyDigits(Dataset):
    """Every fifth image is for validation; `pipeline` augments and normalises."""

    def __init__(self, split="train", pipeline=lambda image: image):
        digits = load_digits()
        held_out = torch.arange(len(digits.target)) % 5 == 0
        chosen = held_out if split == "val" else ~held_out
        self.images = torch.tensor(digits.images, dtype=torch.float32)[chosen, None]
        self.labels = torch.tensor(digits.target)[chosen]
        self.pipeline = pipeline

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        return self.pipeline(self.images[index]), self.labels[index]
