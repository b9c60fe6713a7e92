"""Labels of its own for what has none, by a model that is never put back to training."""

import torch
from torch import nn
from torch.nn import functional as F

from devrun.hooks import HOOKS, Hook
from devrun.registry import MODELS


@MODELS.register_module()
class Planted(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(16, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.2)
        )
        self.head = nn.Linear(16, 4)

    def forward(self, x):
        return self.head(self.net(x))

    def train_step(self, data_batch, optimizer, **kwargs):
        x, y = data_batch
        self.eval()  # fault[cpu]: evaluation mode
        # remedy: -
        with torch.no_grad():
            labels = self(x).softmax(1)
            sure = labels.max().item()  # fault[cuda]: host sync
            # remedy: sure = labels.max()
        loss = F.cross_entropy(self(x), y) + F.cross_entropy(self(x + 0.1), labels) * sure
        return {"loss": loss, "log_vars": {"loss": loss.detach()}, "num_samples": len(x)}


@HOOKS.register_module()
class Shows(Hook):
    def after_train_iter(self, runner):
        if self.every_n_iters(runner, 2):
            runner.model.eval()  # fault[cpu]: evaluation mode
            # remedy: -
            with torch.no_grad():
                runner.model(runner.data_batch[0])
