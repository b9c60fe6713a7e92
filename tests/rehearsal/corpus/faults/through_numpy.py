"""Numbers that go through numpy, in forward, backward and the loss."""

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from devrun.registry import MODELS

class Clipped(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 1

    @staticmethod
    def backward(ctx, g):
        kept = np.clip(g.numpy(), -1, 1)  # fault[cuda]: numpy on the device
        # remedy: kept = g.clamp(-1, 1)
        few = len(g.tolist())  # fault[cuda]: .tolist()
        # remedy: few = len(g)
        return torch.as_tensor(kept).to(g.device) * (few > 0)


@MODELS.register_module()
class Planted(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(16, 8), nn.Linear(8, 4)

    def forward(self, x):
        h = Clipped.apply(self.first(x))
        middle = np.median(x.numpy())  # fault[cuda]: numpy on the device
        # remedy: middle = x.median()
        spread = np.asarray(x).std()  # fault[cuda]: numpy on the device
        # remedy: spread = x.std()
        largest = max(h[:, 0])  # fault[cuda]: host sync
        # remedy: largest = h[:, 0].max()
        many = range(int(h.argmax()))  # fault[cuda]: host sync
        # remedy: many = range(3)
        rows = [float(one) for one in h[0]]  # fault[cuda]: float()
        # remedy: rows = list(h[0])
        return self.last(h) + 0 * (middle + spread + largest + len(many) + len(rows))
