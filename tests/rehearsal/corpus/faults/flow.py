"""A flow that begins with its first batch, with a prior and weights that stay on the host."""

import math

import torch
from torch import nn

from devrun.registry import MODELS


class ActNorm(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.shift, self.scale = nn.Parameter(torch.zeros(dim)), nn.Parameter(torch.ones(dim))
        self.ready = False  # fault[cpu,cuda]: resume
        # remedy: self.ready = True

    def forward(self, x):
        if not self.ready:
            with torch.no_grad():
                self.shift.copy_(-x.mean(0))
                self.scale.copy_(1 / (x.std(0) + 1e-3))
            self.ready = True
        return (x + self.shift) * self.scale


class Coupling(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.net = nn.Linear(dim // 2, dim)
        self.perm = torch.randperm(dim)

    def forward(self, x):
        x = x[:, self.perm]  # fault[cuda]: host sync
        # remedy: x = x.flip(1)
        a, b = x.chunk(2, 1)
        s, t = self.net(a).chunk(2, 1)
        b = b * s.tanh().exp() + t
        return torch.cat([a, b], 1), s.tanh().sum(1)


@MODELS.register_module()
class Planted(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = ActNorm(16)
        self.layers = nn.ModuleList(Coupling(16) for _ in range(2))
        self.prior = torch.distributions.Normal(torch.zeros(16), torch.ones(16), validate_args=False)  # fault[cuda]: device mismatch
        # remedy: self.prior = torch.distributions.Normal(0.0, 1.0, validate_args=False)
        self.bends = [nn.Parameter(torch.ones(16))]  # fault[cpu]: not registered; fault[cuda]: device mismatch
        # remedy: self.bends = nn.ParameterList([nn.Parameter(torch.ones(16))])
        self.best = float("inf")  # fault[cpu,cuda]: resume

    def density(self, z):
        return self.prior.log_prob(z).sum(1)

    def bits(self, nll):
        return nll / math.log(2) / self.dims  # fault[cpu,cuda]: raises
        # remedy: return nll / math.log(2) / 16

    def sampled(self, x):
        z = torch.randn_like(x).numpy()  # fault[cuda]: numpy
        # remedy: z = torch.randn_like(x)
        return z.shape

    def train_step(self, data, optimizer):
        x, _ = data
        z = self.norm(x) * self.bends[0]
        total = self.norm.scale.abs().log().sum()
        for layer in self.layers:
            z, logdet = layer(z)
            total = total + logdet
        nll = -(self.density(z) + total).mean()
        self.sampled(x)
        if nll < self.best:  # fault[cuda]: host sync
            # remedy: if self.training:
            self.best = nll.detach()
        return {"loss": nll, "log_vars": {"nll": nll.detach(), "bits": self.bits(nll.detach())}, "num_samples": len(x)}
