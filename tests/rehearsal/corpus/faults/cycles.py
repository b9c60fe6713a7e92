"""Two kinds of pictures made into each other, with a pool of old fakes."""

import torch
from torch import nn
from torch.nn import functional as F

from devrun.registry import MODELS


class Pool:
    """Half of what a critic sees are fakes of earlier updates."""

    def __init__(self):
        self.old = None  # fault[cpu,cuda]: resume

    def mix(self, fakes):
        given, self.old = self.old, fakes
        if given is None:
            return fakes
        half = len(fakes) // 2
        return torch.cat([given[:half], fakes[half:]])


def translator():
    return nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 3, 3, padding=1))


@MODELS.register_module()
class Cycles(nn.Module):
    def __init__(self):
        super().__init__()
        self.makers = nn.ModuleList([translator(), translator()])
        self.critic = nn.Sequential(nn.Conv2d(3, 4, 3, 2, 1), nn.LeakyReLU(0.2), nn.Conv2d(4, 1, 3, 2, 1))
        self.pool, self.steps = Pool(), 0

    def judge(self, scores, real):
        return F.mse_loss(scores, torch.full(scores.shape, float(real)))  # fault[cuda]: device mismatch

    def train_step(self, data, optimizer):
        real = data[0]
        fake = self.makers[0](real.flip(-1))
        cycle = F.l1_loss(self.makers[1](fake), real.flip(-1))
        optimizer["makers"].zero_grad()
        (self.judge(self.critic(fake), True) + 10 * cycle).backward()
        optimizer["makers"].step()

        loss = self.judge(self.critic(real), True) + self.judge(self.critic(self.pool.mix(fake.detach())), False)
        loss.backward()  # fault[cpu]: gradients
        optimizer["critic"].step()
        self.steps += 1
        if self.steps % 2 == 0:
            print(f"cycle {cycle:.3f}")  # fault[cuda]: host sync
        return {"loss": loss.detach(), "log_vars": {"cycle": cycle.detach()}, "num_samples": len(real)}
