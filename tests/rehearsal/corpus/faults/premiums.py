"""Insurance premiums from a table: embeddings, mixup, and a Gaussian likelihood."""

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import Dataset

from devrun.registry import DATASETS, HOOKS, MODELS
from devrun.hooks import Hook


@DATASETS.register_module()
class Policies(Dataset):
    def __init__(self, size=80):
        rng = np.random.default_rng(3)
        self.numbers = rng.normal(size=(size, 6)).astype("float32")
        self.kinds = rng.integers(0, 10, size=(size, 2))
        self.premium = np.exp(self.numbers[:, 0] / 4)

    def __len__(self):
        return len(self.numbers)

    def __getitem__(self, index):
        x = torch.from_numpy(self.numbers[index])
        return x, torch.as_tensor(self.kinds[index]), torch.tensor(self.premium[index])


@MODELS.register_module()
class Premiums(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.kinds = nn.ModuleList(nn.Embedding(10, 4) for _ in range(2))
        self.edges = torch.tensor([-1.0, 0.0, 1.0])  # fault[hpu,ipu]: device mismatch
        # remedy: self.register_buffer("edges", torch.tensor([-1.0, 0.0, 1.0]))
        self.age = nn.Embedding(4, 4)
        self.body = nn.Sequential(nn.Linear(18, width), nn.ReLU(), nn.LayerNorm(width))
        self.mean, self.spread = nn.Linear(width, 1), nn.Linear(width, 1)

    def mixup(self, h, goal):
        two = h.new_full((len(h), 2), 0.4)
        share = torch.distributions.Dirichlet(two, validate_args=False).sample()[:, :1]  # fault[hpu]: on the host; fault[ipu]: cannot be compiled
        # remedy: share = torch.rand(len(h), 1, device=h.device)
        order = torch.randperm(len(h))
        h = share * h + (1 - share) * h[order]  # fault[hpu]: host
        # remedy: h = share * h + (1 - share) * h[order.to(h.device)]
        return h, share[:, 0] * goal + (1 - share[:, 0]) * goal[order]  # fault[hpu]: host
        # remedy: return h, share[:, 0] * goal + (1 - share[:, 0]) * goal[order.to(h.device)]

    def train_step(self, data, optimizer):
        numbers, kinds, goal = data
        # graphcore/poptorch, issue 19
        numbers = torch.nan_to_num(numbers)  # fault[ipu]: cannot be compiled
        # remedy: numbers = torch.where(torch.isnan(numbers), torch.zeros_like(numbers), numbers)
        bins = torch.bucketize(numbers[:, 0].contiguous(), self.edges)
        parts = [embed(kinds[:, n]) for n, embed in enumerate(self.kinds)]
        h = torch.cat([numbers, *parts, self.age(bins)], 1)
        h, goal = self.mixup(h, goal.log())
        h = self.body(h)
        mean, variance = self.mean(h)[:, 0], F.softplus(self.spread(h))[:, 0]
        loss = F.gaussian_nll_loss(mean, goal, variance)  # fault[hpu]: host waits; fault[ipu]: cannot be compiled
        # remedy: loss = 0.5 * (variance.log() + (mean - goal) ** 2 / variance).mean()
        low = torch.quantile((goal - mean).detach(), 0.1)  # fault[ipu]: cannot be compiled
        # remedy: low = (goal - mean).detach().amin()
        logs = {"loss": loss.detach(), "low": low}
        return {"loss": loss, "log_vars": logs, "num_samples": len(h)}


@HOOKS.register_module()
class Watch(Hook):
    def after_train_iter(self, runner):
        if runner.outputs["loss"] > 100:  # fault[hpu]: host waits
            # remedy: if False:
            runner.logger.info("a large loss")
