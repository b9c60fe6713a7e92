"""A sampler that draws each class as often, a loss by focus, and a metric that counts."""

import random

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import Dataset, Sampler

from devrun.hooks import HOOKS, Hook
from devrun.registry import DATASETS, LOSSES, METRICS, MODELS


@DATASETS.register_module()
class Unequal(Dataset):
    def __init__(self, size=50):
        self.labels = [0] * (size - 10) + [1] * 10

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, i):
        x = torch.randn(6, generator=torch.Generator().manual_seed(i))
        return x.half(), torch.tensor(self.labels[i])


class Balanced(Sampler):
    def __init__(self, data_source):
        self.by_class = [[i for i, y in enumerate(data_source.labels) if y == c] for c in (0, 1)]
        self.draws = random.Random(0)  # fault[cpu,cuda]: resume
        self.size = len(data_source)

    def __len__(self):
        return self.size

    def __iter__(self):
        for i in range(self.size):
            yield self.draws.choice(self.by_class[i % 2])


@MODELS.register_module()
class Small(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 2))

    def forward(self, x):
        return self.net(x)  # fault[cpu,cuda]: raises
        # remedy: return self.net(x.float())


@LOSSES.register_module()
class Focal(nn.Module):
    def __init__(self, gamma=2.0, alpha=(0.25, 0.75)):
        super().__init__()
        self.gamma, self.alpha = gamma, torch.tensor(alpha)  # fault[cuda]: device mismatch
        # remedy: self.gamma = gamma; self.register_buffer("alpha", torch.tensor(alpha))

    def forward(self, scores, y):
        logp = F.log_softmax(scores, 1).gather(1, y[:, None]).squeeze(1)
        focus = (1 - logp.exp()) ** self.gamma
        return -(self.alpha[y] * focus * logp).mean()


@METRICS.register_module()
class Share:
    def __init__(self):
        self.reset()

    def reset(self):
        self.right, self.all = torch.zeros(()), 0  # fault[cuda]: device mismatch
        # remedy: self.right, self.all = 0, 0

    def update(self, scores, y):
        self.all += len(y)
        self.right += (scores.argmax(1) == y).sum()

    def compute(self):
        return self.right / self.all


@HOOKS.register_module()
class Grads(Hook):
    def after_backward(self, runner):
        for name, p in runner.model.named_parameters():
            if p.grad.abs().max() > 100:  # fault[cuda]: host sync
            # remedy: if False:
                runner.logger.warning("%s explodes", name)
