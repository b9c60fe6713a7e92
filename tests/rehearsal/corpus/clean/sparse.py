"""A graph layer with an adjacency matrix that is sparse."""

import torch
from torch import nn

from devrun.registry import MODELS

# devices: cpu cuda


@MODELS.register_module()
class Planted(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(16, 4)
        self.register_buffer("links", torch.eye(16).to_sparse(), persistent=False)

    def forward(self, x):
        return self.net(torch.sparse.mm(self.links, x.T).T)
