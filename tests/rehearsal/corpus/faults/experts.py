"""A layer of experts, each for the rows that are sent to it."""

import torch
from torch import nn

from devrun.registry import MODELS


@MODELS.register_module()
class Planted(nn.Module):
    def __init__(self):
        super().__init__()
        self.route = nn.Linear(16, 2)
        self.experts = nn.ModuleList(nn.Linear(16, 4) for _ in range(2))

    def forward(self, x):
        chosen = self.route(x).argmax(1)
        counts = torch.bincount(chosen, minlength=2).tolist()  # fault[cuda]: bincount; fault[cuda]: .tolist()
        # remedy: counts = [len(x), len(x)]
        out = x.new_zeros(len(x), 4)
        for number, expert in enumerate(self.experts):
            mine = (chosen == number)[:, None]
            parts = x[chosen == number]  # fault[cuda]: x[mask]
            # remedy: parts = torch.where(mine, x, 0)
            out = out + torch.where(mine, expert(x), 0) + 0 * parts.sum()
            rows = (chosen == number).nonzero(as_tuple=True)[0]  # fault[cuda]: nonzero
            # remedy: rows = chosen == number
            out = out + 0 * rows.sum()
        share = self.route(x).softmax(1).mean(0)
        if torch.any(share < 1e-9) and counts[0] >= 0:  # fault[cuda]: host sync
            # remedy: if False:
            share = share + 1
        return out + share.sum()
