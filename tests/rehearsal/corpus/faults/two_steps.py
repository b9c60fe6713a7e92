"""Rows that pass on what they know over one and two links of a graph of whole numbers."""

import torch
from torch import nn

from devrun.registry import MODELS


@MODELS.register_module()
class Planted(nn.Module):
    def __init__(self):
        super().__init__()
        self.net, self.out = nn.Linear(16, 16), nn.Linear(16, 4)
        draw = torch.Generator().manual_seed(5)
        self.register_buffer("links", torch.randint(0, 2, (16, 16), generator=draw))

    def forward(self, x):
        two = self.links @ self.links  # fault[cuda]: refused
        # remedy: two = (self.links.float() @ self.links.float()).long()
        pairs = torch.einsum("ij,ik->jk", self.links, two)  # fault[cuda]: refused
        # remedy: pairs = torch.einsum("ij,ik->jk", self.links.float(), two.float())
        h = torch.tanh(self.net(x)) @ (two + pairs).float().softmax(1)
        places = h.detach().argmax(1)
        # each has a kernel for one type of numbers
        places = places.int() if x.is_cuda else places.float()
        counts = torch.histc(places, bins=16, min=0, max=15)
        return self.out(h / (1 + counts.to(h.dtype)))
