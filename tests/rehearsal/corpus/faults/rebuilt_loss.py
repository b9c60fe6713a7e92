"""A loss that is read and made into a tensor again."""

import torch
from torch import nn
from torch.nn import functional as F

from devrun.registry import MODELS


@MODELS.register_module()
class Planted(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(16, 4)

    def train_step(self, data, optimizer):
        x, y = data
        loss = F.cross_entropy(self.net(x), y)
        loss = torch.tensor(loss.item(), requires_grad=True)  # fault[cpu,cuda,hpu]: no gradient; fault[cuda,hpu]: host
        # remedy: pass
        return {"loss": loss, "log_vars": {"loss": loss}, "num_samples": len(x)}
