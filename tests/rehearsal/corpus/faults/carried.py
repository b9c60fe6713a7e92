"""A state that goes over to the next batch, with its graph."""

import torch
from torch import nn

from devrun.registry import MODELS


@MODELS.register_module()
class Planted(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = nn.GRU(4, 8, batch_first=True)
        self.head = nn.Linear(8, 4)
        self.state = None  # fault[cpu,cuda,hpu]: resume

    def forward(self, x):
        out, after = self.rnn(x.view(len(x), 4, 4), self.state)
        if self.training:
            self.state = after  # fault[cpu,cuda,hpu]: backward again
            # remedy: self.state = torch.zeros_like(after)
        return self.head(out[:, -1])
