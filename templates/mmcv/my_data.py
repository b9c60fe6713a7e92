"""A data set of MMCV 1.x's kind: samples are dicts."""

import torch
from sklearn.datasets import load_digits
from torch.utils.data import Dataset

from devrun.registry import DATASETS


@DATASETS.register_module()
class MyDigits(Dataset):
    def __init__(self, test_mode=False):
        digits = load_digits()
        chosen = (torch.arange(len(digits.target)) % 5 == 0) == test_mode
        self.images = torch.tensor(digits.images, dtype=torch.float32)[chosen] / 16
        self.labels = torch.tensor(digits.target)[chosen]

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        return {"img": self.images[index], "gt_label": self.labels[index]}
