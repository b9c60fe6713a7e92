"""A data set and a model with the mistakes of a first evening."""

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import Dataset

from devrun.hooks import HOOKS, Hook
from devrun.registry import DATASETS, MODELS


@DATASETS.register_module()
class Own(Dataset):
    def __init__(self):
        self.rows = np.random.default_rng(0).normal(size=(20, 16)).astype("float32")

    def __len__(self):
        return 24

    def __getitem__(self, index):
        row = self.rows[index]  # fault[cpu,cuda,hpu]: raises
        # remedy: row = self.rows[index % 20]
        return row, {"label": index % 4, "age": index / 24}  # fault[hpu]: float64
        # remedy: return row, {"label": index % 4, "age": torch.tensor(index / 24)}


@MODELS.register_module()
class Planted(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.words = nn.Linear(16, 8), nn.Embedding(6, 8)
        self.head, self.age = nn.Linear(8, 4), nn.Linear(8, 1)

    def train_step(self, data, optimizer):
        x, goal = data
        h = torch.relu(self.body(x))
        h = h + self.words(x[:, 0])  # fault[cpu,cuda,hpu]: raises
        # remedy: h = h + self.words(goal["label"])
        turned = h.t().view(-1)  # fault[cpu,cuda,hpu]: raises
        # remedy: turned = h.t().reshape(-1)
        age = F.mse_loss(self.age(h).squeeze(1), goal["years"])  # fault[cpu,cuda,hpu]: raises
        # remedy: age = F.mse_loss(self.age(h).squeeze(1), goal["age"].float())
        loss = F.cross_entropy(self.head(h), goal["label"]) + age + 0 * turned.sum()
        return {"loss": loss, "log_vars": {"loss": loss}, "num_samples": len(x)}


@HOOKS.register_module()
class Accuracy(Hook):
    def after_train_iter(self, runner):
        self.last = runner.outputs["accuracy"]  # fault[cpu,cuda,hpu]: raises
        # remedy: self.last = runner.outputs["loss"]

    def after_train_epoch(self, runner):
        self.rate = 1 / runner.epoch  # fault[cpu,cuda,hpu]: raises
        # remedy: self.rate = 1.0
