"""A penalty on gradients that forward asks for."""

import torch
import torch.nn.functional as F
from torch import nn

from devrun.registry import MODELS


@MODELS.register_module()
class Planted(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(16, 4)

    def train_step(self, data, optimizer):
        x, y = data
        x = x.detach().requires_grad_(True)
        out = self.body(x)
        loss = F.cross_entropy(out, y)
        loss = loss + torch.autograd.grad(out.sum(), x, create_graph=True)[0].norm()  # fault[ipu]: backward
        # remedy: loss = loss + self.body.weight.sum(0).norm()
        return {"loss": loss, "log_vars": {"loss": loss}, "num_samples": len(x)}
