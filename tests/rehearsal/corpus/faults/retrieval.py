"""Two towers with a queue of negatives and a hard-negative miner."""

import torch
from torch import nn
from torch.nn import functional as F

from devrun import HOOKS, MODELS
from devrun.hooks import Hook


@MODELS.register_module()
class KTowers(nn.Module):
    def __init__(self, width=8, size=32):
        super().__init__()
        self.left, self.right = nn.Linear(16, width), nn.Linear(16, width)
        self.register_buffer("queue", F.normalize(torch.randn(size, width), dim=1))
        self.place = 0  # fault[hpu]: resume
        self.size = size
        self.heat = nn.Parameter(torch.tensor(2.0))

    @torch.no_grad()
    def push(self, keys):
        end = self.place + len(keys)
        self.queue[self.place : end] = keys[: self.size - self.place]
        self.place = end % self.size  # fault[ipu]: once
        # remedy[ipu]: -

    def mine(self, scores):
        order = scores.argsort(1, descending=True)
        hard = [row[row != n][:3] for n, row in enumerate(order)]  # fault[hpu]: host waits; fault[ipu]: cannot be compiled
        # remedy: hard = [row[:3] for row in order]
        return torch.stack(hard)

    def train_step(self, data, optimizer):
        x, y = data
        a, b = F.normalize(self.left(x), dim=1), F.normalize(self.right(x), dim=1)
        scores = a @ b.t() * self.heat.exp()
        heat = float(self.heat)  # fault[hpu]: host waits; fault[ipu]: cannot be compiled
        # remedy: heat = 2.0
        negatives = a @ self.queue.clone().t()
        hard = self.mine(scores.detach())
        same = (y[:, None] == y[None]).float()
        if same.sum() == len(y):  # fault[hpu]: host waits; fault[ipu]: cannot be compiled
            # remedy: if False:
            negatives = negatives * 2
        target = torch.arange(len(x)).to(x.device)
        loss = F.cross_entropy(torch.cat([scores, negatives], 1), target)
        rank = (scores.argsort(1, descending=True) == target[:, None]).nonzero()[:, 1]  # fault[hpu]: host waits; fault[ipu]: cannot be compiled
        # remedy: rank = scores.argmax(1)
        median = rank.float().mean().cpu()  # fault[hpu]: host waits; fault[ipu]: cannot be compiled
        # remedy: median = rank.float().mean()
        self.push(b.detach())
        logs = {"loss": loss.detach(), "rank": median, "heat": heat, "hard": hard.float().mean()}
        return {"loss": loss, "log_vars": logs, "num_samples": len(x)}


@HOOKS.register_module()
class KClamp(Hook):
    def after_train_iter(self, runner):
        model = runner.model
        value = getattr(model, "module", model).heat
        if value.item() > 4.6:  # fault[hpu]: host waits
            # remedy: if False:
            value.data.clamp_(max=4.6)
